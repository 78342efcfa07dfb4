"""The file that says which clients may do what at the HTTP port (setting `access_file`, docs/rest-catalog.md).

It is read again when it has changed, so rights are given and taken while the program runs. One that cannot be
understood then gives no rights to any client until it is mended: an operator who takes a right away, and makes a
mistake, finds the door closed, not open.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.ops.clients.client import Client, Grant, Right
from mirror_pump.ops.clients.token_issuer import TokenCheck, TokenIssuer
from mirror_pump.runtime.handed_files import read_toml
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.source.relations.table_patterns import parse_pattern

_REMEDY = "see docs/rest-catalog.md#who-may-use-it"
_Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class AccessUnknown(MirrorPumpError):
    """The file cannot be read at the moment."""


class _GrantTable(BaseModel):
    """A table `grant` of the file."""

    model_config = ConfigDict(extra="forbid")

    to: _Words
    tables: _Words
    rights: Annotated[list[Right], Field(min_length=1)]

    def grant(self) -> Grant:
        """Raises UsageError for what is no pattern."""
        return Grant(frozenset(self.to), tuple(map(parse_pattern, self.tables)), frozenset(self.rights))


class _AccessTables(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid")

    issuer: TokenIssuer
    grant: list[_GrantTable] = []


class AccessRules:
    """The file as it is now. Threads share it."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the file cannot be understood."""
        self._path = path
        self._lock = threading.Lock()
        self._version = _version(path)
        self._issuer, self._grants = _parsed(path)
        self._check = TokenCheck(self._issuer)
        self._error: UsageError | None = None

    def client(self, token: str) -> Client:
        """Who has the token, with its grants. Raises TokenRefused, also for an empty one, IssuerAway and
        AccessUnknown."""
        with self._lock:
            self._read_again()
            if self._error is not None:
                raise AccessUnknown("the access file cannot be read at the moment", "the server's log says why")
            check, grants = self._check, self._grants
        return check.client(token).with_grants(grants)

    def _read_again(self) -> None:
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            issuer, self._grants = _parsed(self._path)
            if issuer != self._issuer:
                self._issuer, self._check = issuer, TokenCheck(issuer)
            self._error = None
            get_logger("access").info("the access file was read again", file=str(self._path), grants=len(self._grants))
        except UsageError as error:
            self._error = error
            get_logger("access").error(
                "the access file cannot be understood: no token is accepted", error=str(error), remedy=error.remedy
            )


def _version(path: Path) -> tuple[int, int, int] | None:
    """Differs once the file's content does. None without the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parsed(path: Path) -> tuple[TokenIssuer, tuple[Grant, ...]]:
    try:
        tables = _AccessTables.model_validate(read_toml(path))
        return tables.issuer, tuple(entry.grant() for entry in tables.grant)
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise UsageError(f"the access file {path} cannot be understood: {'; '.join(reasons)}", _REMEDY) from error
    except OSError as error:
        raise UsageError(f"the access file {path} cannot be read: {error.strerror or error}", _REMEDY) from error
    except ValueError as error:
        raise UsageError(f"the access file {path} is no TOML: {error}", _REMEDY) from error
