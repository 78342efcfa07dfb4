"""A follower's catalog, as pyiceberg reaches it: what a follower needs of a catalog, and errors with remedies.

A table is registered once, and is moved afterwards by commits as every engine makes them, which require that the table
is as it was read. No catalog is asked to put another metadata file in the place of a table's: of those that can, hardly
one compares what was there.

What a catalog answers is another program's: of its configuration only names that choose no code, no credentials and no
other login are taken, its tables get no files to open, and an answer has to fit into a size and a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pydantic import Field
from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import IcebergBaseModel

from mirror_pump.errors import FollowerAway, FollowerError, MirrorPumpError, one_line_of
from mirror_pump.settings.credentials import CredentialSource, is_catalog_property, without_secrets
from mirror_pump.source.catalog.followers import Follower, Identifier
from mirror_pump.storage_kinds import S3

_PATIENCE = 60.0
"""Seconds that a catalog may take for a call."""
_LARGEST_ANSWER = 64 << 20
"""Bytes of an answer, unpacked."""
_READ_AT_ONCE = 64 << 10
_REFUSALS = (400, 403, 404, 405, 409, 422, 501)
"""Statuses of a commit that is not made, and will not be if it is sent again."""
_MOMENTARY = (
    # The base class of requests' errors.
    OSError,
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
"""What says nothing about a table."""
_FROM_SERVER = ("uri", "prefix", "warehouse", "namespace-separator", "rest-page-size")
"""Properties that a catalog may set. pyiceberg would take any, and imports what `py-io-impl` or `auth` names."""
_LONGEST_TEXT = 500
"""Characters of an answer that are told."""
_TRANSACTION = "transactions/commit"
_COMMITS_TOGETHER = Endpoint(http_method=HttpMethod.POST, path=f"/v1/{{prefix}}/{_TRANSACTION}")


@dataclass(frozen=True)
class TableMove:
    """A commit to one table there."""

    table: Table
    """As it was read."""
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class _JointCommit(IcebergBaseModel):
    """The body of a commit to several tables."""

    table_changes: tuple[CommitTableRequest, ...] = Field(alias="table-changes")


class _AnswerLimits:
    """What all answers within one call may take. requests' own timeout begins anew with each byte, and pyiceberg reads
    as many pages as there are."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.begin()

    def begin(self) -> None:
        """A call begins."""
        self._end = time.monotonic() + self._patience
        self._left = _LARGEST_ANSWER

    def within(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Sends a request by `send`, and reads the whole answer."""

        def sent(request: Any, **options: Any) -> Any:
            response = send(request, **{**options, "timeout": self._patience, "stream": True})
            try:
                response._content = b"".join(self._parts(response.raw))
            except Exception as error:
                response.close()
                raise ConnectionError(f"the answer cannot be read: {error}") from error
            return response

        return sent

    def _parts(self, raw: Any) -> Iterator[bytes]:
        while part := raw.read1(_READ_AT_ONCE, decode_content=True):
            self._left -= len(part)
            if self._left < 0:
                raise ValueError(f"it has more than {_LARGEST_ANSWER} bytes")
            if time.monotonic() > self._end:
                raise TimeoutError(f"it is not complete after {self._patience:.0f} s")
            yield part


class _PatientCatalog(RestCatalog):
    """A REST catalog that does not wait for ever: pyiceberg gives its sessions no timeout. Not by `load_catalog`, which
    would mix in what a file of the user says of a catalog of this name."""

    def __init__(self, name: str, limits: _AnswerLimits, properties: Mapping[str, str]) -> None:
        self._limits = limits
        super().__init__(name, **properties)

    def _config_headers(self, session: Any) -> None:
        # The first thing that pyiceberg does with a session; the next may be to get a token.
        super()._config_headers(session)
        adapter_of = session.get_adapter
        session.get_adapter = lambda url: SimpleNamespace(send=self._limits.within(adapter_of(url).send))

    def _fetch_config(self) -> None:
        given = dict(self.properties)
        super()._fetch_config()
        answered = {name: self.properties[name] for name in _FROM_SERVER if name in self.properties}
        self.properties = {**given, **answered}

    def _load_file_io(self, *_: object, **__: object) -> Any:
        # The mirror's files are read by the mirror's own settings.
        return None


class FollowerCatalog:
    """The catalog of one follower, for one thread. Everything raises FollowerError, FollowerAway among them."""

    def __init__(self, follower: Follower, patience: float = _PATIENCE) -> None:
        """Connects. Raises CredentialsError, too."""
        self._name = follower.name
        self._limits = _AnswerLimits(patience)
        self._secrets: Mapping[str, str] = {}
        with self._errors("connecting"):
            given = {} if follower.credential_ref is None else _credentials(follower.credential_ref)
            self._secrets = given
            # A row of the database must not make this process import a module.
            options = {
                name: value for name, value in follower.options.items() if name == "uri" or is_catalog_property(name)
            }
            self._catalog = _PatientCatalog(follower.name, self._limits, {**options, **given})
        self.answers()

    @property
    def moves_together(self) -> bool:
        """Whether it takes changes of several tables in one commit."""
        return _COMMITS_TOGETHER in self._catalog._supported_endpoints

    def answers(self) -> None:
        """Raises FollowerError unless it answers."""
        with self._errors("connecting"):
            self._catalog.list_namespaces()

    def load(self, identifier: Identifier) -> Table | None:
        """The table of this name; None if there is none."""
        with self._errors(f"loading {'.'.join(identifier)}"):
            try:
                table: Table = self._catalog.load_table(identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            return table

    def register(self, identifier: Identifier, location: str, properties: Mapping[str, str]) -> Table:
        """Registers a table that is not there by its metadata file. Makes its namespace, with these properties, unless
        it is there."""
        with self._errors(f"registering {'.'.join(identifier)}"):
            for end in range(1, len(identifier)):
                # A role that may register tables need not be allowed to make namespaces.
                if self.namespace_properties(identifier[:end]) is None:
                    self._catalog.create_namespace_if_not_exists(identifier[:end], dict(properties))
            table: Table = self._catalog.register_table(identifier, location)
            return table

    def commit(self, move: TableMove) -> None:
        """Moves one table."""
        with self._errors(f"committing to {'.'.join(move.table.name())}"):
            self._catalog.commit_table(move.table, move.requirements, move.updates)

    def commit_together(self, moves: Sequence[TableMove]) -> bool:
        """Moves all tables at once, where `moves_together`. False if it refuses that: none has moved. pyiceberg has no
        call for it, and all of its parts."""
        catalog = self._catalog
        body = _JointCommit.model_validate({"table_changes": tuple(map(_request, moves))}).model_dump_json().encode()
        with self._errors(f"committing to {len(moves)} tables"):
            response = catalog._session.post(catalog.url(_TRANSACTION), data=body)
            if not response.ok and response.status_code not in _REFUSALS:
                raise CommitStateUnknownException(f"{response.status_code} {response.text}"[:_LONGEST_TEXT])
            return bool(response.ok)

    def drop(self, identifier: Identifier) -> None:
        """Drops a table, and leaves its files."""
        with self._errors(f"dropping {'.'.join(identifier)}"), suppress(NoSuchTableError):
            self._catalog.drop_table(identifier)

    def namespace_properties(self, namespace: Identifier) -> Mapping[str, str] | None:
        """None if there is no such namespace."""
        with self._errors(f"looking at namespace {'.'.join(namespace)}"):
            try:
                properties: Mapping[str, str] = self._catalog.load_namespace_properties(namespace)
            except NoSuchNamespaceError:
                return None
            return properties

    def set_namespace_property(self, namespace: Identifier, name: str, value: str) -> None:
        """Does nothing where namespaces have no properties that can be changed."""
        with self._errors(f"noting the frontier in {'.'.join(namespace)}"), suppress(NotImplementedError):
            self._catalog.update_namespace_properties(namespace, updates={name: value})

    def remove_namespace_property(self, namespace: Identifier, name: str) -> None:
        """Does nothing where namespaces have no properties that can be changed."""
        with self._errors(f"changing namespace {'.'.join(namespace)}"), suppress(NotImplementedError):
            self._catalog.update_namespace_properties(namespace, removals={name})

    def drop_namespace(self, namespace: Identifier) -> bool:
        """Drops a namespace that is empty. False if it is not."""
        with self._errors(f"dropping namespace {'.'.join(namespace)}"):
            try:
                self._catalog.drop_namespace(namespace)
            except NamespaceNotEmptyError:
                return False
            return True

    def close(self) -> None:
        """Close its connections."""
        self._catalog.close()

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        self._limits.begin()
        try:
            yield
        except MirrorPumpError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a catalog's client raises keeps that follower back alone
            text = without_secrets(one_line_of(error), self._secrets)
            kind = FollowerAway if isinstance(error, _MOMENTARY) else FollowerError
            raise kind(f"follower {self._name}: {doing}: {text}", _remedy(error)) from None


def _request(move: TableMove) -> CommitTableRequest:
    *namespace, name = move.table.name()
    identifier = TableIdentifier.model_validate({"namespace": namespace, "name": name})
    return CommitTableRequest(identifier=identifier, requirements=move.requirements, updates=move.updates)


def _credentials(reference: str) -> Mapping[str, str]:
    return CredentialSource(reference, S3, is_catalog_property).properties()


def _remedy(error: Exception) -> str:
    if isinstance(error, (UnauthorizedError, ForbiddenError)):
        return "see that the credentials which the follower refers to are right, and may do that; it is tried again"
    if isinstance(error, (CommitFailedException, CommitStateUnknownException)):
        return "it is tried again, after a look at what is there"
    if isinstance(error, (NotInstalledError, ModuleNotFoundError)):
        return "install that package beside the program, where the pump runs too"
    return "see that it can be reached from here and takes this; it is tried again, and nothing waits for it"
