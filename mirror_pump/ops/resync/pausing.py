"""Pauses tables: nothing of them is sent or kept any more, and readers keep what they have. And resumes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from mirror_pump.errors import Interrupted, TableError
from mirror_pump.model import TableId, TableMode, TableName, TableState
from mirror_pump.ops.register.copies import copies_progress, follow_copies
from mirror_pump.ops.register.unregistration import registered_table
from mirror_pump.ops.resync.resync import would_lose
from mirror_pump.ops.table_locks import locked_transaction
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer, unobserved
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.pauses import pause_table, resume_table
from mirror_pump.source.catalog.pump_channel import RESYNC, notify_pump
from mirror_pump.source.catalog.resync import ResyncCandidate, resync_candidates
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.stream.slot import check_publication

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Paused:
    """A table that is paused now."""

    table: TableName
    since: datetime
    already: bool
    """Whether it was before."""


@dataclass(frozen=True)
class Resumed:
    """A table that is not paused any more."""

    table_id: TableId
    table: TableName
    was_paused: bool
    snapshot_only: bool
    """Whether it is to be paused again once it is copied."""


def pause(settings: Settings, name: str) -> Paused:
    """Pause a table. It holds no WAL and no memory from then on, and readers keep it as of its frontier.

    Raises TableError, having done nothing, for a table that has ended, that is tiered, or of which a copy would lose
    rows: a table that is resumed is copied again.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-pause") as connection:
        with source_errors(f"pausing {name}"):
            table = _candidate(connection, settings, name, "paused")
        if table.paused_since is not None:
            return Paused(table.name, table.paused_since, already=True)
        if table.left_to_the_lake is not None:
            raise would_lose(table, lost=False)
        publication = catalog_slot(connection, settings.slot).publication

        def attempt() -> datetime:
            since = pause_table(connection, settings.slot, publication, table.table_id)
            if since is None:
                raise changed_meanwhile(table.name)
            return since

        return Paused(table.name, _in_transaction(connection, settings, table.name, attempt), already=False)


def resume(settings: Settings, name: str) -> Resumed:
    """Publish a paused table again, and have it copied again; `follow` waits for that. Readers keep what they have
    until the copy is complete. Does nothing for a table that is not paused. Raises TableError as `pause` does."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-resume") as connection:
        with source_errors(f"resuming {name}"):
            table = _candidate(connection, settings, name, "resumed")
        if table.paused_since is None:
            return Resumed(table.table_id, table.name, was_paused=False, snapshot_only=table.snapshot_only)
        publication = catalog_slot(connection, settings.slot).publication
        check_publication(connection, publication)

        def attempt() -> None:
            if not resume_table(connection, settings.slot, publication, table.table_id):
                raise changed_meanwhile(table.name)

        _in_transaction(connection, settings, table.name, attempt)
        return Resumed(table.table_id, table.name, was_paused=True, snapshot_only=table.snapshot_only)


def follow(
    settings: Settings,
    tables: Sequence[TableId],
    on_progress: Callable[[Sequence[TableProgress]], None],
    observer: Observer = unobserved,
) -> list[TableProgress]:
    """Return once none of these tables is being copied any more, with what has become of each. If no pump runs, this
    process copies them. Ctrl-C raises Interrupted."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-resume") as connection:
        try:
            follow_copies(connection, settings, tables, on_progress, observer)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; the tables are resumed, and a pump goes on with their copies",
                "`mirror-pump run` or `mirror-pump resync --all` follows them",
            ) from None
        return copies_progress(connection, tables)


def _candidate(connection: PgConnection, settings: Settings, name: str, what: str) -> ResyncCandidate:
    registered = registered_table(connection, name)
    if registered.mode is TableMode.TIERED:
        raise TableError(
            f"{registered.name} is a tiered table, which cannot be {what}: nothing of it comes by the stream",
            "policy maintenance_enabled=false keeps its partitions where they are",
        )
    table = next(
        (table for table in resync_candidates(connection, settings.slot) if table.table_id == registered.table_id), None
    )
    if table is None:
        raise TableError(f"{registered.name} belongs to another slot than {settings.slot}", "give --slot")
    if table.state.has_ended:
        dropped = "was dropped in Postgres" if table.state is TableState.DROPPED else "has failed"
        raise TableError(
            f"{table.name} {dropped}, and cannot be {what}: nothing of it is sent any more",
            "`mirror-pump status` says more; readers keep what they have until it is unregistered",
        )
    return table


def changed_meanwhile(name: TableName) -> TableError:
    """A table's state is not the one that a change was meant for."""
    return TableError(
        f"the state of {name} changed meanwhile: nothing was done", "`mirror-pump status` shows it; try again"
    )


def _in_transaction(
    connection: PgConnection, settings: Settings, name: TableName, attempt: Callable[[], _Result]
) -> _Result:
    """Make a change of the publication, which waits for ALTER TABLE and VACUUM of the table, and tell the pump."""

    def change() -> _Result:
        result = attempt()
        notify_pump(connection, RESYNC)
        return result

    return locked_transaction(connection, settings, name, f"changing how {name} is published", change)
