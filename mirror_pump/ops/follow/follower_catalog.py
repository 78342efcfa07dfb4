"""A follower's catalog, as pyiceberg reaches it: what a follower needs of a catalog, and errors with remedies.

A table is registered once, and is moved afterwards by commits as every engine makes them, which require that the table
is as it was read. No catalog is asked to put another metadata file in the place of a table's: of those that can, hardly
one compares what was there.

What a catalog answers is another program's: it chooses no code, no credentials and no files outside of the lake, and
has to fit into a size and a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import Table

from mirror_pump.errors import FileMissing, FollowerAway, FollowerError, MirrorPumpError, one_line_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.follow.answer_limits import AnswerLimits
from mirror_pump.ops.follow.follower_tables import FOLLOWER, ForeignEntry, TableMove
from mirror_pump.ops.follow.metastore_tables import ForeignMetadata
from mirror_pump.settings.credentials import CredentialSource, is_catalog_property, without_secrets
from mirror_pump.source.catalog.followers import Follower, FollowerKind, Identifier
from mirror_pump.storage_kinds import S3

_PATIENCE = 60.0
"""Seconds that a catalog may take for a call."""
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
_EXTRAS = {"boto3": "glue", "thrift": "hive"}
"""Packages that some catalogs need, and what brings them."""


class FollowerCatalog:
    """The catalog of one follower, for one thread. Everything raises FollowerError, FollowerAway among them."""

    def __init__(self, follower: Follower, storage: StorageOptions, patience: float = _PATIENCE) -> None:
        """Connects. `storage`: how the lake's files are reached. Raises CredentialsError, too."""
        self._name = follower.name
        self._follower_id = follower.follower_id
        self._limits = AnswerLimits(patience)
        self._secrets: Mapping[str, str] = {}
        self._momentary = _MOMENTARY
        with self._errors("connecting"):
            given = {} if follower.credential_ref is None else _credentials(follower.credential_ref)
            self._secrets = given
            # A row of the database must not make this process import a module.
            options = {
                name: value for name, value in follower.options.items() if name == "uri" or is_catalog_property(name)
            }
            client = _client_of(follower.kind)
            self._catalog = client(follower.name, {**options, **given}, storage, self._limits)
            self._momentary += self._catalog.momentary
        self.answers()

    @property
    def moves_together(self) -> bool:
        """Whether it takes changes of several tables in one commit."""
        return bool(self._catalog.moves_together)

    def answers(self) -> None:
        """Raises FollowerError unless it answers."""
        with self._errors("connecting"):
            self._catalog.list_namespaces()

    def load(self, identifier: Identifier) -> Table | ForeignEntry | None:
        """The table of this name, or what else has it; None if nothing does."""
        with self._errors(f"loading {'.'.join(identifier)}"):
            try:
                table: Table = self._catalog.load_table(identifier)
            except (NoSuchIcebergTableError, NoSuchPropertyException, ForeignMetadata):
                return ForeignEntry()
            except (NoSuchTableError, NoSuchNamespaceError, FileMissing):
                return None
            return table

    def register(self, identifier: Identifier, location: str, properties: Mapping[str, str]) -> Table | None:
        """Registers a table that is not there by its metadata file; None if something has its name. Makes its
        namespace, with these properties, unless it is there."""
        with self._errors(f"registering {'.'.join(identifier)}"):
            for end in range(1, len(identifier)):
                # A role that may register tables need not be allowed to make namespaces.
                if self.namespace_properties(identifier[:end]) is None:
                    self._catalog.create_namespace_if_not_exists(identifier[:end], dict(properties))
            try:
                table: Table = self._catalog.register_table(identifier, location)
            except TableAlreadyExistsError:
                return None
            return table

    def takes(self, move: TableMove) -> bool:
        """Whether it can make this move."""
        with self._errors(f"comparing the columns of {'.'.join(move.table.name())}"):
            return bool(self._catalog.takes(move))

    def commit(self, move: TableMove) -> None:
        """Moves one table."""
        with self._errors(f"committing to {'.'.join(move.table.name())}"):
            self._catalog.move(move)

    def commit_together(self, moves: Sequence[TableMove]) -> bool:
        """Moves all tables at once, where `moves_together`. False if it refuses that: none has moved."""
        with self._errors(f"committing to {len(moves)} tables"):
            return bool(self._catalog.commit_together(moves))

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
        """Does nothing where namespaces have no properties that can be changed, or only all at once and it is another
        program's."""
        with self._errors(f"noting the frontier in {'.'.join(namespace)}"), suppress(NotImplementedError):
            if self._catalog.rewrites_namespaces:
                owner = self._catalog.load_namespace_properties(namespace).get(FOLLOWER)
                if owner != self._follower_id:
                    return
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
            kind = FollowerAway if isinstance(error, self._momentary) else FollowerError
            raise kind(f"follower {self._name}: {doing}: {text}", _remedy(error)) from None


def _client_of(kind: FollowerKind) -> Any:
    """The class of pyiceberg's client for catalogs of this kind. Raises ModuleNotFoundError if it lacks a package."""
    if kind is FollowerKind.GLUE:
        from mirror_pump.ops.follow.glue_catalog import FollowingGlue

        return FollowingGlue
    if kind is FollowerKind.HIVE:
        from mirror_pump.ops.follow.hive_catalog import FollowingHive

        return FollowingHive
    from mirror_pump.ops.follow.rest_catalog import FollowingRest

    return FollowingRest


def _credentials(reference: str) -> Mapping[str, str]:
    return CredentialSource(reference, S3, is_catalog_property).properties()


def _remedy(error: Exception) -> str:
    if isinstance(error, (UnauthorizedError, ForbiddenError)):
        return "see that the credentials which the follower refers to are right, and may do that; it is tried again"
    if isinstance(error, (CommitFailedException, CommitStateUnknownException)):
        return "it is tried again, after a look at what is there"
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        return f"pip install 'mirror-pump[{_EXTRAS[error.name]}]', where the pump runs too"
    if isinstance(error, (NotInstalledError, ModuleNotFoundError)):
        return "install that package beside the program, where the pump runs too"
    return "see that it can be reached from here and takes this; it is tried again, and nothing waits for it"
