"""What the service tells about itself while it runs."""
