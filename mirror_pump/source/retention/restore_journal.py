"""The journal of a restore: what it has planned, made and copied, in modak.op_log, and the pin on what it reads.

A restore may be killed at any time, and be continued by another process. Each step is one transaction together with its
entry here. The pinned snapshot and the corrections that it lacks stay as long as the pin, so a restore whose pin has
expired begins again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.model import EVERYTHING_IN_HEAP, SnapshotId, TableId
from mirror_pump.source.advisory_locks import advisory_key
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention.restore_plan import RestoredRange, ShedPartition
from mirror_pump.source.retention.restored_tables import RestoredTable
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("restore")

PIN_SECONDS = 86_400.0
"""How long the pin outlives a restore that was killed. Until then the restore can be continued where it was."""
STOPPED = "its rows are brought back into the heap"
"""How it begins why a table's retention stops meanwhile: modak.mirror_tables.retention."""
_HOW_IT_ENDS = "`mirror-pump unregister TABLE --restore-heap` goes on with it, and with --abort gives it up"


@dataclass(frozen=True)
class RestorePin:
    """What the pin of a restore keeps."""

    pin_id: int
    cut: int
    snapshot_id: SnapshotId
    """The published snapshot."""
    location: str
    """Its metadata file."""


@dataclass(frozen=True)
class RestoreJournal:
    """A restore under way."""

    op_id: str
    pin: RestorePin
    floor: int
    """The retention line; EVERYTHING_IN_HEAP if there is none."""
    definition: str
    """What partitions get from the table, as it was when the first one was made."""
    planned: tuple[RestoredRange, ...]
    tables: tuple[RestoredTable, ...]
    """Those that are made: the first ones of `planned`."""
    ingests: tuple[str, ...]
    """Ingests whose files the pinned snapshot has. Those of others are no corrections, so nothing would bring them."""

    def with_table(self, made: RestoredTable) -> RestoreJournal:
        """The journal with one more table."""
        return replace(self, tables=(*self.tables, made))

    def file_entry(self, path: str) -> str:
        """The UUID of the entry of a file of the lake, the same whenever it is asked for."""
        return str(uuid.uuid5(uuid.UUID(self.op_id), path))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "restore heap",
            "pin": asdict(self.pin),
            "floor": self.floor,
            "definition": self.definition,
            "planned": [asdict(planned_range) for planned_range in self.planned],
            "tables": [made.to_json() for made in self.tables],
            "ingests": list(self.ingests),
        }

    @classmethod
    def from_json(cls, op_id: str, stored: Mapping[str, Any]) -> RestoreJournal:
        return cls(
            op_id,
            RestorePin(**stored["pin"]),
            stored["floor"],
            stored["definition"],
            tuple(RestoredRange(**planned_range) for planned_range in stored["planned"]),
            tuple(RestoredTable(**made) for made in stored["tables"]),
            tuple(stored.get("ingests", ())),
        )


@dataclass(frozen=True)
class AttachedBelow:
    """An attached partition below the cut-line."""

    partition_id: str
    relation_id: int
    proven: bool
    """It is proven that the lake holds it, and it was not altered since."""
    watched_as: str | None
    """modak.watch_mark()."""


def exclude_others(connection: PgConnection, table_id: TableId) -> bool:
    """Whether no other session restores this table, until this session ends."""
    row = connection.execute(_SQL["exclude"], {"key": advisory_key(f"restore {table_id}")}).fetchone()
    return row is not None and bool(row[0])


def read_journal(connection: PgConnection, table_id: TableId) -> RestoreJournal | None:
    """The restore that was begun; None if there is none."""
    row = connection.execute(_SQL["running"], {"table_id": table_id}).fetchone()
    if row is None:
        return None
    op_id, stored = row
    return RestoreJournal.from_json(op_id, stored)


def landed_ingests(connection: PgConnection, table_id: TableId) -> tuple[str, ...]:
    """The ingests that have brought files into the table's lake, by their IDs in the journal."""
    return tuple(op_id for (op_id,) in connection.execute(_SQL["ingests"], {"table_id": table_id}).fetchall())


def begin(connection: PgConnection, table_id: TableId, journal: RestoreJournal) -> None:
    """Records a restore. In the caller's transaction."""
    details = Jsonb(journal.to_json())
    snapshot_id = journal.pin.snapshot_id
    parameters = {"op_id": journal.op_id, "table_id": table_id, "snapshot_id": snapshot_id, "details": details}
    connection.execute(_SQL["begin"], parameters)


def stop_retention(connection: PgConnection, table_id: TableId) -> None:
    """Stops the table's retention, if it has not stopped for another reason."""
    connection.execute(_SQL["stop"], {"table_id": table_id, "reason": f"{STOPPED} ({_HOW_IT_ENDS})"})


def resume_retention(connection: PgConnection, table_id: TableId) -> None:
    """Lets retention go on that a restore has stopped."""
    connection.execute(_SQL["go_on"], {"table_id": table_id, "reason": STOPPED})


def keeps_heap(connection: PgConnection, table_id: TableId) -> bool:
    """Whether partitions stay in the heap although the lake holds them."""
    row = connection.execute(f"SELECT {SCHEMA}.keeps_heap(%s)", (table_id,)).fetchone()
    return row is not None and bool(row[0])


def note(connection: PgConnection, journal: RestoreJournal) -> None:
    """Records the tables that are made. In the caller's transaction, which has made one."""
    details = Jsonb({"tables": [made.to_json() for made in journal.tables]})
    connection.execute(_SQL["note"], {"op_id": journal.op_id, "details": details})


def forget(connection: PgConnection, table_id: TableId) -> None:
    """Ends a restore: removes its entries, and lets retention go on. In the caller's transaction."""
    connection.execute(_SQL["forget"], {"table_id": table_id})
    resume_retention(connection, table_id)


def copied(connection: PgConnection, table_id: TableId) -> dict[str, int]:
    """The entries of the files that are copied, with the numbers of rows."""
    return dict(connection.execute(_SQL["done"], {"table_id": table_id}).fetchall())


def retention_line(connection: PgConnection, table_id: TableId) -> tuple[int, int]:
    """The cut-line, and the retention line (EVERYTHING_IN_HEAP if there is none)."""
    row = connection.execute(_SQL["cutline"], {"table_id": table_id}).fetchone()
    assert row is not None
    cut, floor = row
    return cut, EVERYTHING_IN_HEAP if floor is None else floor


def shed_partitions(connection: PgConnection, table_id: TableId) -> list[ShedPartition]:
    """The partitions that have left the heap."""
    return fetch_rows(connection, ShedPartition, _SQL["shed"], {"table_id": table_id})


def attached_below(connection: PgConnection, table_id: TableId) -> list[AttachedBelow]:
    """The attached partitions below the cut-line."""
    return fetch_rows(connection, AttachedBelow, _SQL["attached"], {"table_id": table_id})


@dataclass(frozen=True)
class CorrectionVersion:
    """A row of the query `versions`."""

    pk: str
    version: int
    tier_key: int


def correction_versions(connection: PgConnection, table_id: TableId, lo: int, hi: int) -> list[CorrectionVersion]:
    """The corrections with a tier key in [lo, hi), folded or not, without their rows."""
    where = {"table_id": table_id, "lo": lo, "hi": hi}
    return fetch_rows(connection, CorrectionVersion, _SQL["versions"], where)


def reader_in_the_way(connection: PgConnection, table_id: TableId, *, whole: bool) -> str | None:
    """A reader that still needs the corrections; with `whole`, one that needs the lake. None if there is none."""
    row = connection.execute(_SQL["reader"], {"table_id": table_id, "whole": whole}).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def lock_pins(connection: PgConnection) -> None:
    """Keeps new pins out until the end of the transaction; all others are visible then."""
    connection.execute(_SQL["lock_pins"])


def unlike(
    connection: PgConnection, table_id: TableId, made: RestoredTable, corrections: Sequence[CorrectionVersion]
) -> list[tuple[str, str]]:
    """Of the corrections, those that the table has not got as they are: canonical key, and how they differ."""
    tiers = [correction.tier_key for correction in corrections]
    where = {
        "table_id": table_id,
        "relation_id": made.relation_id,
        "lo": min(tiers),
        "hi": max(tiers) + 1,
        "keys": [correction.pk for correction in corrections],
    }
    return [(str(pk), str(difference)) for pk, difference in connection.execute(_SQL["compare"], where)]
