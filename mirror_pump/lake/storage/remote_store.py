"""Opens remote stores, and tells their errors apart: those that another attempt may not meet, credentials that are
refused, and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mirror_pump.errors import CredentialsError, FileMissing, LakeError, StorageFull
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.storage_kinds import KINDS, kind_of

_Result = TypeVar("_Result")

_BACKOFF = Backoff(first=0.25, longest=2.0, jitter=0.5)
_ATTEMPTS = 3
"""Attempts at a request that fails for a moment. The client library makes three in each of them, so this takes some
seconds. What fails for longer ends the pump's session, which pauses and begins again."""
_TRANSIENT = re.compile(
    r"SLOW_DOWN|SlowDown|THROTTLING|SERVICE_UNAVAILABLE|ServiceUnavailable|INTERNAL_FAILURE|InternalError"
    r"|REQUEST_TIMEOUT|RequestTimeout|NETWORK_CONNECTION|curlCode|HTTP status (?:5\d\d|-1)|was cut off"
    # As obstore writes it.
    r"|HTTP error|status code: (?:408|429|5\d\d)"
)
_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch"
    r"|EXPIRED_TOKEN|ExpiredToken|REQUEST_EXPIRED|TokenRefreshRequired|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE"
    r"|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|InvalidToken|HTTP status 40[13]"
    # An answer to HEAD has no body that would name the error; S3 answers 400 to an expired token.
    r"|Bad Request.*Head|Head.*Bad Request|HTTP status 400.*during Head"
    r"|PermissionDenied|Unauthenticated|status code: 40[13]"
)


def open_store(location: str, properties: Mapping[str, str]) -> tuple[Any, str]:
    """The Arrow file system of a URI, and the key within it. Raises LakeError for a scheme that cannot be opened."""
    if "://" not in location:
        raise LakeError(
            f"{location!r} is not a storage location", "give a URI, such as file:///srv/lake or s3://bucket/lake"
        )
    kind = kind_of(location)
    if kind is None:
        scheme = location.partition("://")[0]
        schemes = ", ".join(f"{kind.scheme}://" for kind in KINDS)
        raise LakeError(f"no storage is known for {scheme}:// locations", f"use file:// or one of {schemes}")
    return kind.file_system(location, properties)


def refuses_credentials(error: BaseException) -> bool:
    """Whether a store does not accept the credentials: they have expired, are wrong, or allow too little."""
    return _REFUSED.search(str(error)) is not None


def repeated(request: Callable[[], _Result], *, once: bool = False) -> _Result:
    """The result of a request that has the same effect however often it is made. It is made again if it fails for a
    moment, unless `once`."""
    return _BACKOFF.call(request, _may_pass, most=1 if once else _ATTEMPTS)


def _may_pass(error: BaseException) -> bool:
    """Whether a LakeError, or an error of Arrow's, is of a kind that passes by itself."""
    if isinstance(error, FileMissing | CredentialsError | StorageFull):
        return False
    is_storage_error = isinstance(error, LakeError | OSError) or is_arrow_error(error)
    return is_storage_error and _TRANSIENT.search(str(error)) is not None


def is_arrow_error(error: BaseException) -> bool:
    """Whether it is one of Arrow's own errors. Most of its errors about files are an OSError."""
    import pyarrow as pa

    return isinstance(error, pa.ArrowException)
