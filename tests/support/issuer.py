"""An issuer of tokens: its description and its keys by HTTP, as OpenID Connect has them, and tokens that it signs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

AUDIENCE = "lake"


@dataclass
class SigningIssuer:
    """A running one."""

    url: str = ""
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)
    """By key ID. The description of keys has them all."""
    requests: list[str] = field(default_factory=list)
    """Paths that were asked for."""

    def add_key(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(65537, 2048)

    def documents(self) -> dict[str, Any]:
        """What it serves, by path."""
        keys = [
            {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig", "alg": "RS256"}
            for name, key in self.keys.items()
        ]
        description = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"/.well-known/openid-configuration": description, "/keys": {"keys": keys}}

    def token(self, name: str, key: str = "first", **claims: Any) -> str:
        """A token of a client; `claims` besides the usual ones, or instead of them. None: without that claim."""
        usual = {"sub": name, "iss": self.url, "aud": AUDIENCE, "exp": int(time.time()) + 600}
        given = {claim: value for claim, value in (usual | claims).items() if value is not None}
        return jwt.encode(given, self.keys[key], algorithm="RS256", headers={"kid": key})


@contextmanager
def issuing() -> Iterator[SigningIssuer]:
    """Serves an issuer with one key, `first`."""
    issuer = SigningIssuer()
    issuer.add_key("first")

    class IssuerHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.requests.append(self.path)
            document = issuer.documents().get(self.path)
            self.send_response(404 if document is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), IssuerHandler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
