"""Tokens that an issuer signs (OAuth 2.0 access tokens in the form of RFC 9068, OpenID Connect).

The library checks signature, issuer, audience and times. Keys come from the issuer, are kept for _KEYS_LAST seconds,
and are asked for again if a token names another one, at most once in ten seconds. Symmetric algorithms are not
accepted: with these a client could sign by the public key.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.ops.clients.client import Client
from mirror_pump.runtime.telemetry import get_logger

if TYPE_CHECKING:
    from jwt import PyJWK

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_KEYS_LAST = 900.0
"""Seconds."""
_PATIENCE = 5.0
"""Seconds that the issuer has to answer."""
_LEEWAY = 30
"""Seconds by which clocks may differ."""
_MOST_SENT = 1 << 20
"""Bytes of the issuer's description."""
_URL = r"https://\S+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/\S*)?"
"""Keys that come over a plain connection could be an attacker's."""

HttpsUrl = Annotated[str, Field(pattern=f"^({_URL})$")]


class TokenRefused(MirrorPumpError):
    """A token that does not say who the client is."""


class IssuerAway(MirrorPumpError):
    """The issuer does not say by which keys it signs."""


class TokenIssuer(BaseModel):
    """The table `issuer` of the access file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    url: HttpsUrl
    """The tokens' `iss`."""
    audience: Annotated[str, Field(min_length=1)]
    """One of the tokens' `aud`: tokens for other services are refused."""
    keys: HttpsUrl | None = None
    """Where its keys are (JWKS). None: as its description says (.well-known/openid-configuration)."""
    name: Annotated[str, Field(min_length=1)] = "sub"
    """The claim that is the client's name. A dot leads into an object."""
    roles: Annotated[str, Field(min_length=1)] = "roles"
    """The claim with its roles: a list, or words of a text."""


@dataclass(frozen=True)
class _IssuerKeys:
    """The issuer's keys as of a time."""

    by_id: Mapping[str, PyJWK] = field(default_factory=dict)
    asked_at: float = -math.inf
    """By time.monotonic()."""
    error: str | None = None
    """Why the last request failed; the keys are those of before."""

    def is_due(self, key_id: str, pause: float) -> bool:
        """Whether the issuer is to be asked: at most once in `pause` seconds, whatever tokens name."""
        age = time.monotonic() - self.asked_at
        return age > pause and (self.error is not None or key_id not in self.by_id or age > _KEYS_LAST)


class TokenCheck:
    """Says whose a token is. Threads share it."""

    def __init__(self, issuer: TokenIssuer, *, asked_again: float = 10.0) -> None:
        """`asked_again`: shortest time in seconds between two requests for its keys. Raises UsageError without the
        library."""
        self._pause = asked_again
        self.issuer = issuer
        self._library = _library()
        self._lock = threading.Lock()
        """Held while the issuer is asked."""
        self._keys = _IssuerKeys()

    def client(self, token: str) -> Client:
        """Who has the token, without grants. Raises TokenRefused and IssuerAway."""
        jwt = self._library
        if not token:
            raise TokenRefused("a token of the issuer is needed, as a bearer token")
        try:
            claims = jwt.decode(
                token,
                self._key(jwt.get_unverified_header(token).get("kid")),
                algorithms=_ALGORITHMS,
                issuer=self.issuer.url,
                audience=self.issuer.audience,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.exceptions.PyJWTError, ValueError, RecursionError) as error:
            raise TokenRefused(f"the token is not accepted: {error}", "get a new one of the issuer") from error
        name = _claim(claims, self.issuer.name)
        if not isinstance(name, str) or not name:
            raise TokenRefused(f"the token has no claim {self.issuer.name}, which names the client")
        roles = _claim(claims, self.issuer.roles)
        words = roles.split() if isinstance(roles, str) else roles if isinstance(roles, list) else ()
        return Client(name, frozenset(role for role in words if isinstance(role, str)))

    def _key(self, key_id: object) -> PyJWK:
        """Raises TokenRefused without such a key, IssuerAway if there are none. Keys outlive an issuer that is away."""
        if not isinstance(key_id, str):
            raise TokenRefused("the token names no key (`kid`)")
        # A thread waits for another one that asks only if there is no key at all yet.
        wait = 0.0 if self._keys.by_id else _PATIENCE
        if self._keys.is_due(key_id, self._pause) and self._lock.acquire(timeout=wait):
            try:
                if self._keys.is_due(key_id, self._pause):
                    self._keys = self._asked()
            finally:
                self._lock.release()
        keys = self._keys
        if key_id in keys.by_id:
            return keys.by_id[key_id]
        if keys.error is not None or not keys.by_id:
            reason = keys.error or "it has not answered yet"
            raise IssuerAway(f"the keys of {self.issuer.url} cannot be had: {reason}", "try again")
        raise TokenRefused("the issuer has no such key as the token names")

    def _asked(self) -> _IssuerKeys:
        try:
            uri = self.issuer.keys or _keys_uri(self.issuer.url)
            client = self._library.PyJWKClient(uri, cache_jwk_set=False, timeout=_PATIENCE)
            by_id = {key.key_id: key for key in client.get_signing_keys()}
        except Exception as error:  # noqa: BLE001 - whatever the issuer sends
            get_logger("access").warning("the issuer's keys cannot be had", issuer=self.issuer.url, error=str(error))
            return replace(self._keys, asked_at=time.monotonic(), error=str(error))
        return _IssuerKeys(by_id, time.monotonic())


def _library() -> Any:
    try:
        import jwt
        from jwt.algorithms import has_crypto
    except ImportError:
        has_crypto = False
    if not has_crypto:
        raise UsageError(
            "PyJWT, which checks tokens of an issuer, is not installed", "pip install 'mirror-pump[oauth]'"
        )
    return jwt


def _keys_uri(issuer: str) -> str:
    """What the issuer's description says."""
    address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    remedy = "give `keys`, the address of its keys, in the access file's table `issuer`"
    try:
        with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:  # noqa: S310 - https, or this machine
            description = json.loads(answer.read(_MOST_SENT))
    except (OSError, ValueError) as error:
        raise IssuerAway(f"{address} cannot be read: {error}", remedy) from error
    uri = description.get("jwks_uri") if isinstance(description, dict) else None
    if not isinstance(uri, str) or not re.fullmatch(_URL, uri) or description.get("issuer") != issuer:
        raise IssuerAway(f"{address} does not describe the issuer {issuer}", remedy)
    return uri


def _claim(claims: Any, path: str) -> Any:
    """A claim by its name, or by a path of names with dots. None without it."""
    if isinstance(claims, dict) and path in claims:
        return claims[path]
    for name in path.split("."):
        claims = claims.get(name) if isinstance(claims, dict) else None
    return claims
