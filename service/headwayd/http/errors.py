"""Why the HTTP port could not be opened. Apart from the rest, which only a service that has the port loads."""


class CannotListenHttp(OSError):
    """The address of the HTTP port is taken, or is not this machine's."""
