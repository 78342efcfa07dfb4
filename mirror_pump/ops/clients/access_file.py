"""The file that says which clients may do what at the HTTP port (setting `access_file`, docs/rest-catalog.md).

It is read again when it has changed, so rights are given and taken while the program runs. One that cannot be
understood then gives no rights to any client until it is mended: an operator who takes a right away, and makes a
mistake, finds the door closed, not open.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.ops.clients.client import Client, Grant, Right
from mirror_pump.ops.clients.token_issuer import HttpsUrl, TokenCheck, TokenIssuer
from mirror_pump.runtime.file_systems import file_version
from mirror_pump.runtime.handed_files import problems_of, read_toml
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


class CredentialsRole(BaseModel):
    """The table `credentials` of the file: how clients get credentials for the files of single tables."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Annotated[str, Field(min_length=1)]
    """The role that the server assumes for a client (its ARN)."""
    seconds: Annotated[int, Field(ge=900, le=43_200)] = 3600
    """How long credentials last."""
    endpoint: HttpsUrl | None = None
    """Of the service (STS). None: the storage's, or AWS."""


class _AccessTables(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: TokenIssuer
    credentials: CredentialsRole | None = None
    grant: list[_GrantTable] = []

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises UsageError."""
        try:
            return cls.model_validate(read_toml(path))
        except ValidationError as error:
            raise UsageError(f"the access file {path} cannot be understood: {problems_of(error)}", _REMEDY) from error
        except OSError as error:
            raise UsageError(f"the access file {path} cannot be read: {error.strerror or error}", _REMEDY) from error
        except ValueError as error:
            raise UsageError(f"the access file {path} is no TOML: {error}", _REMEDY) from error


@dataclass(frozen=True)
class _Rules:
    """A version of the file."""

    issuer: TokenIssuer
    credentials: CredentialsRole | None
    grants: tuple[Grant, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises UsageError."""
        tables = _AccessTables.read(path)
        return cls(tables.issuer, tables.credentials, tuple(table.grant() for table in tables.grant))


class AccessRules:
    """The file as it is now. Threads share it."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the file cannot be understood."""
        self._path = path
        self._lock = threading.Lock()
        self._version = file_version(path)
        self._rules: _Rules | None = _Rules.read(path)
        """None: it cannot be understood at the moment."""
        self._check = TokenCheck(self._rules.issuer)

    def client(self, token: str) -> Client:
        """Who has the token, with its grants. Raises TokenRefused, also for an empty one, IssuerAway and
        AccessUnknown."""
        with self._lock:
            self._read_again()
            rules, check = self._rules, self._check
        if rules is None:
            raise AccessUnknown("the access file cannot be understood at the moment", "the server's log says why")
        return check.client(token).with_grants(rules.grants)

    @property
    def credentials(self) -> CredentialsRole | None:
        """How clients get credentials for single tables. None: not at all."""
        with self._lock:
            return None if self._rules is None else self._rules.credentials

    def _read_again(self) -> None:
        version = file_version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._rules = _Rules.read(self._path)
            if self._rules.issuer != self._check.issuer:
                self._check = TokenCheck(self._rules.issuer)
            get_logger("access").info("the access file was read again", file=str(self._path))
        except UsageError as error:
            self._rules = None
            get_logger("access").error(
                "the access file cannot be understood: no token is accepted", error=str(error), remedy=error.remedy
            )
