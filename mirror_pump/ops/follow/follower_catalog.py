"""A follower's catalog, as pyiceberg reaches it: what a follower needs of a catalog, and errors with remedies.

A table is registered once, and is moved afterwards by commits as every engine makes them, which require that the table
is as it was read. No catalog is asked to put another metadata file in the place of a table's: of those that can, hardly
one compares what was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field
from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import IcebergBaseModel

from mirror_pump.errors import FollowerError, MirrorPumpError, one_line_of
from mirror_pump.settings.credentials import CredentialSource, is_catalog_property, without_secrets
from mirror_pump.source.catalog.followers import Follower, Identifier
from mirror_pump.storage_kinds import S3

_TIMEOUT = 60.0
"""Seconds for which a catalog may take to answer."""
_CONFLICT = 409
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


class _PatientCatalog(RestCatalog):
    """A REST catalog that does not wait for ever: pyiceberg gives its sessions no timeout. Not by `load_catalog`, which
    would mix in what a file of the user says of a catalog of this name."""

    def _create_session(self) -> Any:
        session: Any = super()._create_session()
        session.request = partial(session.request, timeout=_TIMEOUT)
        return session


class FollowerCatalog:
    """The catalog of one follower, for one thread. Everything raises FollowerError."""

    def __init__(self, follower: Follower) -> None:
        """Connects. Raises CredentialsError, too."""
        self._name = follower.name
        self._secrets: Mapping[str, str] = {}
        with self._errors("connecting"):
            given = {} if follower.credential_ref is None else _credentials(follower.credential_ref)
            self._secrets = given
            # A row of the database must not make this process import a module.
            options = {
                name: value for name, value in follower.options.items() if name == "uri" or is_catalog_property(name)
            }
            self._catalog = _PatientCatalog(follower.name, **options, **given)
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

    def commit_together(self, moves: Sequence[TableMove]) -> None:
        """Moves all tables at once, where `moves_together`. pyiceberg has no call for it, and all of its parts."""
        catalog = self._catalog
        body = _JointCommit.model_validate({"table_changes": tuple(map(_request, moves))}).model_dump_json().encode()
        with self._errors(f"committing to {len(moves)} tables"):
            response = catalog._session.post(catalog.url(_TRANSACTION), data=body)
            if not response.ok:
                refusal = CommitFailedException if response.status_code == _CONFLICT else RESTError
                raise refusal(f"{response.status_code} {response.text}"[:_LONGEST_TEXT])

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
        try:
            yield
        except MirrorPumpError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a catalog's client raises keeps that follower back alone
            text = without_secrets(one_line_of(error), self._secrets)
            raise FollowerError(f"follower {self._name}: {doing}: {text}", _remedy(error)) from None


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
