"""TLS of the gRPC port, with certificates that follow their files."""

from __future__ import annotations

from typing import Any

import grpc

from headwayd.access.tls import Pems, TlsFiles


def credentials_of(tls: TlsFiles) -> grpc.ServerCredentials:
    """What `bind` needs to serve TLS. Every connection gets the certificate that the files hold when it begins."""
    last = tls.pems

    def fetch() -> Any:
        # On a thread of gRPC, for every connection. None: the same as before.
        nonlocal last
        if tls.pems is last:
            return None
        last = tls.pems
        return _configuration(last)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(last), fetch, require_client_authentication=last.client_ca is not None
    )


def _configuration(pems: Pems) -> Any:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.client_ca)
