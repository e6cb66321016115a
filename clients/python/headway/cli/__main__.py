"""Lets `python -m headway.cli` run the command line."""

from headway.cli import main

main()
