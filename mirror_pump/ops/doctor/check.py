"""A check of `mirror-pump doctor`, what it found, and what all checks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from mirror_pump.errors import MirrorPumpError, SourceError, of_this_mirror
from mirror_pump.json_documents import JsonDocument
from mirror_pump.ops.setup.stored_settings import complete_from
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.mirror_roles import MirrorRole, read_role
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.server import read_server

DEADLINE = 20.0
"""Seconds that a check may take, unless it says otherwise. Connecting to a server that does not answer takes 10."""


class Outcome(StrEnum):
    """What a finding means, the worst first."""

    FAILED = "failed"
    """The mirror does not work, or not for a table, until an operator acts. The exit code is 1."""
    WARNING = "warning"
    """The mirror works, but an operator should know."""
    SKIPPED = "skipped"
    """The check could not be made, because something is missing that another finding reports."""
    OK = "ok"


@dataclass(frozen=True)
class Finding(JsonDocument):
    """One thing that a check found."""

    outcome: Outcome
    message: str
    """What was found, for people."""
    remedy: str = ""
    """What to do, as far as possible as a command to paste. Empty if nothing has to be done."""
    table: str | None = None
    """The table that it is about; None if it is not about one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", of_this_mirror(self.message))
        object.__setattr__(self, "remedy", of_this_mirror(self.remedy))


def ok(message: str) -> Finding:
    """A finding that all is well."""
    return Finding(Outcome.OK, message)


def warning(message: str, remedy: str, table: str | None = None) -> Finding:
    """A finding that an operator should know of."""
    return Finding(Outcome.WARNING, message, remedy, table)


def failed(message: str, remedy: str, table: str | None = None) -> Finding:
    """A finding that an operator has to act on."""
    return Finding(Outcome.FAILED, message, remedy, table)


def skipped(message: str) -> Finding:
    """A finding that something could not be looked at."""
    return Finding(Outcome.SKIPPED, message)


def failure(error: MirrorPumpError, table: str | None = None) -> Finding:
    """The finding of an error that the mirror itself would raise."""
    return failed(str(error), error.remedy, table)


@dataclass(frozen=True)
class DoctorCheck:
    """A check. It asks for what it needs itself, so that none depends on another's success."""

    name: str
    """One or two words, for people and for JSON."""
    run: Callable[[Site], Iterable[Finding]]
    """May raise any error: that is a finding too."""
    needs: tuple[str, ...] = ()
    """Names of the checks without which this one is skipped: those that failed, or were skipped."""
    deadline: float = DEADLINE
    """Seconds after which the others go on without it."""


class Site:
    """What the checks look at: the settings, the database that they name, and the mirror in it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        """As given by the user: not completed by what `init` stored."""
        self._away = False

    def has_no_database(self) -> None:
        """Note that the database cannot be reached, so that no later check waits for it."""
        self._away = True

    @contextmanager
    def connection(self) -> Iterator[PgConnection]:
        """A connection of the check's own, in autocommit mode. Raises UsageError and SourceError."""
        with connect(self.settings.require_dsn(), autocommit=True, application_name="mirror-pump-doctor") as connection:
            # A table that another session is altering must not stop the doctor.
            connection.execute("SET statement_timeout = '10s'")
            yield connection

    @cached_property
    def mirror(self) -> Settings | None:
        """The settings of the mirror in the database; None if there is none, or if the database cannot be asked."""
        if self._away:
            return None
        try:
            with self.connection() as connection:
                return complete_from(connection, self.settings)
        except MirrorPumpError:
            return None

    @cached_property
    def streams(self) -> bool | None:
        """Whether the mirror has a stream; False if it is for tiered tables only, and None if there is no mirror."""
        mirror = self.mirror
        if mirror is None:
            return None
        try:
            with self.connection() as connection:
                return catalog_slot(connection, mirror.slot).streams
        except MirrorPumpError:
            return None

    @cached_property
    def is_reader(self) -> bool:
        """Whether the role may only read the mirror, so that what a pump or the admin needs is not asked of it."""
        if self._away:
            return False
        try:
            with self.connection() as connection:
                return read_role(connection, read_server(connection)).part is MirrorRole.READER
        except MirrorPumpError:
            return False

    def require_mirror(self) -> Settings:
        """The settings of the mirror. Raises SourceError if there is none."""
        if self.mirror is None:
            raise SourceError("the database has no mirror", "mirror-pump init --warehouse URI")
        return self.mirror

    @property
    def lake(self) -> Settings:
        """The settings with which the storage is reached: those of the mirror, or else the user's."""
        return self.mirror or self.settings
