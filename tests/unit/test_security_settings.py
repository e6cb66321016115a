"""Which settings of TLS and callers go together, and when listening beyond this machine needs to be insisted on."""

from __future__ import annotations

from typing import Any

import pytest

from headwayd.config.settings import BadSettings, Settings

OPEN: dict[str, Any] = {"listen": ["0.0.0.0:7420"]}
TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
SIGNED = {"jwt_jwks": "keys.json", "jwt_issuer": "issuer", "jwt_audience": "headway"}


@pytest.mark.parametrize(
    "callers", [{"auth_file": "callers.toml"}, SIGNED, {"tls_client_ca": "ca.pem"}], ids=lambda each: next(iter(each))
)
def test_with_tls_and_callers_it_may_listen_anywhere(callers: dict[str, str]) -> None:
    assert Settings.load(OPEN | TLS | callers).knows_callers
    http = {"http_listen": "0.0.0.0:8080"}
    assert Settings.load(http | TLS | callers).knows_callers


@pytest.mark.parametrize(
    ("given", "lacks"),
    [({}, "no TLS"), (TLS, "need no credentials"), ({"auth_file": "callers.toml"}, "no TLS"), (SIGNED, "no TLS")],
)
def test_without_one_of_them_it_needs_to_be_insisted_on(given: dict[str, str], lacks: str) -> None:
    with pytest.raises(BadSettings, match=lacks) as caught:
        Settings.load(OPEN | given)
    assert "--insecure" in str(caught.value)
    Settings.load(OPEN | given | {"insecure": True})
    Settings.load(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tls_cert": "a"}, "tls_cert and tls_key go together"),
        ({"tls_key": "a"}, "tls_cert and tls_key go together"),
        ({"tls_client_ca": "a"}, "tls_client_ca needs tls_cert"),
        ({"jwt_jwks": "a"}, "jwt_jwks needs jwt_issuer and jwt_audience"),
        ({"jwt_jwks": "a", "jwt_issuer": "b"}, "jwt_jwks needs jwt_issuer and jwt_audience"),
    ],
)
def test_what_belongs_together_is_asked_for_together(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadSettings, match=text):
        Settings.load(given)
