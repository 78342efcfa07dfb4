"""Tokens that an issuer signs (OAuth 2.0 access tokens in the form of RFC 9068, OpenID Connect).

The library checks signature, issuer, audience and times. Keys come from the issuer, are kept for _KEYS_LAST seconds,
and are asked for again if a token names another one, at most every 30 seconds. Symmetric algorithms are not accepted:
with these a client could sign by the public key.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.ops.clients.client import Client

if TYPE_CHECKING:
    from jwt import PyJWKClient

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


class TokenCheck:
    """Says whose a token is. Threads share it."""

    def __init__(self, issuer: TokenIssuer) -> None:
        """Raises UsageError without the library."""
        self.issuer = issuer
        self._lock = threading.Lock()
        self._keys: PyJWKClient | None = None
        self._library = _library()

    def client(self, token: str) -> Client:
        """Who has the token, without grants. Raises TokenRefused and IssuerAway."""
        jwt = self._library
        if not token:
            raise TokenRefused("a token of the issuer is needed, as a bearer token")
        try:
            key = self._key_client().get_signing_key_from_jwt(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                issuer=self.issuer.url,
                audience=self.issuer.audience,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.exceptions.PyJWKClientConnectionError as error:
            raise IssuerAway(f"the keys of {self.issuer.url} cannot be had: {error}", "try again") from error
        except (jwt.exceptions.PyJWTError, ValueError) as error:
            raise TokenRefused(f"the token is not accepted: {error}", "get a new one of the issuer") from error
        name = _claim(claims, self.issuer.name)
        if not isinstance(name, str) or not name:
            raise TokenRefused(f"the token has no claim {self.issuer.name}, which names the client")
        roles = _claim(claims, self.issuer.roles)
        words = roles.split() if isinstance(roles, str) else roles if isinstance(roles, list) else ()
        return Client(name, frozenset(role for role in words if isinstance(role, str)))

    def _key_client(self) -> PyJWKClient:
        """Raises IssuerAway if the issuer's description cannot be read."""
        with self._lock:
            if self._keys is None:
                uri = self.issuer.keys or _keys_uri(self.issuer.url)
                self._keys = self._library.PyJWKClient(uri, lifespan=_KEYS_LAST, timeout=_PATIENCE)
            return self._keys


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
    place = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    remedy = "give `keys`, the address of its keys, in the access file's table `issuer`"
    try:
        with urllib.request.urlopen(place, timeout=_PATIENCE) as answer:  # noqa: S310 - https, or this machine
            description = json.loads(answer.read(_MOST_SENT))
    except (OSError, ValueError) as error:
        raise IssuerAway(f"{place} cannot be read: {error}", remedy) from error
    uri = description.get("jwks_uri") if isinstance(description, dict) else None
    if not isinstance(uri, str) or description.get("issuer") != issuer:
        raise IssuerAway(f"{place} does not describe the issuer {issuer}", remedy)
    return uri


def _claim(claims: Any, path: str) -> Any:
    """A claim by its name, or by a path of names with dots. None without it."""
    if isinstance(claims, dict) and path in claims:
        return claims[path]
    for name in path.split("."):
        claims = claims.get(name) if isinstance(claims, dict) else None
    return claims
