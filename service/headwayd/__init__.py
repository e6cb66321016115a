"""The service: queues on a Redis or Valkey server, spoken to by gRPC. Clients never import it."""

import os
from importlib.metadata import version

__version__ = version("headwayd")

# Read by gRPC when it is loaded, so it stands here, before anything of the service loads that. See docs/design.md,
# gRPC's threads. What the operator set goes first.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
