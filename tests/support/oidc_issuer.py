"""An issuer of tokens that is not the tests' own: oidc-provider, certified for OpenID Connect, which `make test` brings
into build/ by npm."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from playwright._impl._driver import compute_driver_executable

from tests.support.npm_package import install_locked

AUDIENCE = "lake"
CLIENT, SECRET = "etl", "correct-horse-battery-staple"
_SOURCE = Path(__file__).parent / "oidc_provider"
_BUILT = Path(__file__).parents[2] / "build" / "oidc-provider"


@dataclass
class OidcIssuer:
    """A running one."""

    process: subprocess.Popen[str] = field(repr=False)
    url: str = ""

    def configure(self, *keys: str, clock: int = 0) -> None:
        """Has it publish these keys, and sign by the first, with a clock that is so many seconds ahead."""
        configuration = {"keys": [_private_key(key) for key in keys], "clock": clock, "clients": {CLIENT: SECRET}}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(configuration), file=self.process.stdin, flush=True)
        port = self.process.stdout.readline().strip()
        assert port.isdigit(), "the issuer did not start: its standard error says why"
        self.url = f"http://127.0.0.1:{port}"

    @property
    def token_endpoint(self) -> str:
        """As its own description names it."""
        with urllib.request.urlopen(f"{self.url}/.well-known/openid-configuration", timeout=30) as answer:
            return str(json.load(answer)["token_endpoint"])

    def token(self, audience: str = AUDIENCE) -> str:
        """One that the client gets by its credentials, for a service."""
        credentials = {"client_id": CLIENT, "client_secret": SECRET, "resource": f"urn:{audience}", "scope": "catalog"}
        body = urllib.parse.urlencode({"grant_type": "client_credentials", **credentials}).encode()
        with urllib.request.urlopen(self.token_endpoint, body, timeout=30) as answer:
            return str(json.load(answer)["access_token"])


@cache
def _private_key(name: str) -> dict[str, Any]:
    key = rsa.generate_private_key(65537, 2048)
    return {**RSAAlgorithm.to_jwk(key, as_dict=True), "kid": name, "use": "sig", "alg": "RS256"}


@contextmanager
def oidc_issuing() -> Iterator[OidcIssuer | None]:
    """Serves one with the key `first`; None if it is not there."""
    program = _BUILT / "issuer.mjs"
    if not program.exists():
        yield None
        return
    # Playwright has a Node.js with it.
    command = [compute_driver_executable()[0], str(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        issuer = OidcIssuer(process)
        try:
            issuer.configure("first")
            yield issuer
        finally:
            process.kill()


if __name__ == "__main__":
    try:
        install_locked(_SOURCE, _BUILT)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"no oidc-provider: {error}")
