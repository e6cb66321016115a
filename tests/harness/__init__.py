"""What tests start and hold on to: store servers, service processes, a faulty wire, conditions, decoded errors.

Every process started here dies with the test process; every wait has a deadline.
"""

from harness.conditions import eventually
from harness.errors import WireError, error_of, refused
from harness.proxy import FaultProxy
from harness.service import ServiceProcess
from harness.stores import StoreServer

__all__ = ["FaultProxy", "ServiceProcess", "StoreServer", "WireError", "error_of", "eventually", "refused"]
