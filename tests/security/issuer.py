"""An issuer of signed tokens, and the HTTP server where its keys are found."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://issuer.example", "headway"
_MAKE: dict[str, Any] = {
    "RS": lambda: rsa.generate_private_key(65537, 2048),
    "PS": lambda: rsa.generate_private_key(65537, 2048),
    "ES": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed": ed25519.Ed25519PrivateKey.generate,
}


class SigningKey:
    """A key by which tokens are signed. Published with the name of an algorithm if it `names` one."""

    def __init__(self, key_id: str = "one", algorithm: str = "ES256", *, names: str = "") -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self._named = {"alg": names} if names else {}
        self._private = _MAKE[algorithm[:2]]()

    @property
    def jwk(self) -> dict[str, Any]:
        """Its public half."""
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        public: dict[str, Any] = json.loads(algorithm.to_jwk(self._private.public_key()))
        return public | {"kid": self.key_id, "use": "sig"} | self._named

    @property
    def public_pem(self) -> bytes:
        """Its public half, in another spelling."""
        return bytes(
            self._private.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def token(self, *, without: tuple[str, ...] = (), **claims: Any) -> str:
        """A sound token of an admin, with these claims instead or besides, and those left out."""
        sound = {"iss": ISSUER, "aud": AUDIENCE, "sub": "somebody", "exp": time.time() + 300, "roles": ["admin"]}
        given = {name: value for name, value in (sound | claims).items() if name not in without}
        return jwt.encode(given, self._private, self.algorithm, headers={"kid": self.key_id})


def key_set(*keys: SigningKey) -> str:
    """As it is published."""
    return json.dumps({"keys": [key.jwk for key in keys]})


def unsigned(claims: dict[str, Any], algorithm: str = "none") -> str:
    """A token without a signature."""
    parts = ({"alg": algorithm, "typ": "JWT", "kid": "one"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


class KeyServer:
    """Publishes a set of keys, and counts who asks. `text` None: it fails."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.asked = 0
        self.url = ""


@contextmanager
def key_server(text: str | None, *, cookie: str = "") -> Iterator[KeyServer]:
    """A key server on loopback, for as long as the block. With a `cookie` it sets that."""
    keys = KeyServer(text)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.asked += 1
            body = (keys.text or "").encode()
            self.send_response(200 if keys.text is not None else 503)
            self.send_header("Content-Length", str(len(body)))
            if cookie:
                self.send_header("Set-Cookie", cookie)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    keys.url = f"http://127.0.0.1:{server.server_port}/keys"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class DrippingServer:
    """Sends a byte of its answer now and then, for as long as it is read: then `has_lost` somebody."""

    def __init__(self) -> None:
        self.asked = 0
        self.url = ""
        self.has_lost = threading.Event()


@contextmanager
def dripping_server(begins: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n") -> Iterator[DrippingServer]:
    """On loopback, for as long as the block. What the answer `begins` with comes at once."""
    dripping, is_over = DrippingServer(), threading.Event()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            dripping.asked += 1
            self.connection.recv(10_000)
            try:
                self.connection.sendall(begins)
                while not is_over.wait(0.1):
                    self.connection.sendall(b" ")
            except OSError:
                dripping.has_lost.set()

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    dripping.url = f"http://127.0.0.1:{server.server_address[1]}/keys"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield dripping
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
