"""The service: queues on a Redis or Valkey server, spoken to by gRPC. Clients never import it."""

from importlib.metadata import version

__version__ = version("headwayd")
