"""Replays change feeds: what a feed says happened between two frontiers turns the mirror at the one into the mirror at
the other (docs/changes.md).

The later frontier is the present one. The earlier one is the oldest whose rows the lake still has under the present
columns, in the history of the mirrored table or in a kept moment, and after which the feed has no reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import FileDamaged, LakeError, MirrorPumpError, one_line_of
from mirror_pump.lake.commit.readable_files import require_readable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.feed_schema import LSN, OLD, OP, SEQ
from mirror_pump.lake.format.raw_text_columns import every_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.ops.changes.pinned_feeds import pin_snapshot
from mirror_pump.ops.changes.points import ChangeInterval
from mirror_pump.ops.document_rows import has_variants
from mirror_pump.ops.verify.compare_duckdb import compare_rows
from mirror_pump.ops.verify.comparison import ComparedRows
from mirror_pump.ops.verify.kept_files import FeedReport
from mirror_pump.ops.verify.pinned_tables import pinned
from mirror_pump.source.catalog.change_feeds import feed_repair, load_feed
from mirror_pump.source.catalog.feed_reads import read_feeds
from mirror_pump.source.catalog.kept_moments import KeptMoment
from mirror_pump.source.catalog.pins import PinnedSet, PinRelation
from mirror_pump.source.connect import PgConnection

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TRIES = 3
"""Attempts to read a former snapshot, which nothing keeps: maintenance may remove its files meanwhile."""
_PIN_SECONDS = 21_600.0

_REPLAY = """
CREATE OR REPLACE TEMP TABLE replayed AS
WITH truncated AS (SELECT max(({lsn}, {seq})) AS place FROM changes WHERE {op} = 'truncate'),
last_changes AS (
    SELECT * FROM changes c
     WHERE {op} IN ('insert', 'update', 'delete')
       AND NOT coalesce((SELECT place FROM truncated) > ({lsn}, {seq}), false)
   QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {lsn} DESC, {seq} DESC) = 1)
SELECT {columns} FROM before b
 WHERE (SELECT place FROM truncated) IS NULL AND NOT EXISTS (SELECT 1 FROM last_changes c WHERE {same})
 UNION ALL BY NAME
SELECT {columns} FROM last_changes WHERE {op} <> 'delete'
"""
_REPLAY_ROWS = """
CREATE OR REPLACE TEMP TABLE replayed AS
WITH truncated AS (SELECT max(({lsn}, {seq})) AS place FROM changes WHERE {op} = 'truncate'),
later AS (SELECT * FROM changes WHERE NOT coalesce((SELECT place FROM truncated) > ({lsn}, {seq}), false))
(SELECT {columns} FROM before WHERE (SELECT place FROM truncated) IS NULL
  UNION ALL
 SELECT {columns} FROM later WHERE {op} IN ('insert', 'update'))
EXCEPT ALL
SELECT {old_columns} FROM later WHERE {op} IN ('update', 'delete')
"""
"""Of a table without a key: what came, without what went. The order does not matter."""


@dataclass(frozen=True)
class _FrontierState:
    """The rows of a mirrored table at a frontier."""

    frontier: Lsn
    location: str
    """A metadata file that has the snapshot."""
    snapshot_id: int

    @property
    def scan(self) -> str:
        return f"iceberg_scan({literal(self.location)}, snapshot_from_id = {self.snapshot_id})"


@dataclass(frozen=True)
class MirrorReplay:
    """Replays the feeds of one mirror by DuckDB."""

    connection: PgConnection
    slot: str
    storage: StorageOptions
    duckdb: DuckDBPyConnection
    moments: tuple[KeptMoment, ...]
    shown: int
    """How many differing rows are looked at."""

    def replay(self, report: FeedReport, table: MirroredTable) -> FeedReport:
        """The report on a feed that has all files, with what the replay has found."""
        import duckdb as module

        for tried in range(1, _TRIES + 1):
            try:
                return self._replay(report, table)
            except module.Error as error:
                if tried == _TRIES:
                    reason = self._damage(report, table.table_id) or f"it could not be replayed: {one_line_of(error)}"
                    return replace(report, problem=reason)
            except MirrorPumpError as error:
                return replace(report, problem=f"it could not be replayed: {error}")
        raise AssertionError("every attempt returns, but for the last")

    def _damage(self, report: FeedReport, table_id: TableId) -> str | None:
        """Which file of the feed cannot be read, and what to do; None if all can. An engine's error may not name it."""
        feed = load_feed(self.connection, table_id)
        if feed is None or feed.metadata_location is None:
            return None
        try:
            require_readable(feed.metadata_location, self.storage)
        except FileDamaged as error:
            return f"{error}. To repair it, {feed_repair(report.table, feed.mode, feed.keep)}"
        except LakeError:
            pass
        return None

    def _replay(self, report: FeedReport, table: MirroredTable) -> FeedReport:
        with pinned(self.connection, {table.table_id: table}) as (frontier, locations, published):
            location = locations.get(table.table_id)
            feeds = read_feeds(self.connection, self.slot)
            feed = next((feed for feed in feeds if feed.feed_id == table.table_id), None)
            if location is None or feed is None or feed.begins_lsn is None:
                return replace(report, note="its table is not live")
            metadata = read_metadata(location, self.storage)
            if has_variants(metadata.current_schema):
                return replace(report, note="it has variants, which are not replayed")
            first = max(feed.begins_lsn, feed.expired_lsn)
            states = sorted(
                (state for state in self._states(table.table_id, location, metadata) if first <= state.frontier),
                key=lambda state: state.frontier,
            )
            pins = PinnedSet(lambda: nullcontext(self.connection), PinRelation.FEEDS, _PIN_SECONDS)
            try:
                between = ChangeInterval(first, frontier)
                changes = pin_snapshot(pins, self.slot, feed, between, self.storage)
                latest = _FrontierState(frontier, location, -1)
                return self._from(report, published[table.table_id], states, latest, changes.location)
            finally:
                pins.drop()

    def _states(self, table_id: TableId, location: str, metadata: TableMetadata) -> Iterator[_FrontierState]:
        """The states that the lake has under the present columns, one for each frontier."""
        for moment in self.moments:
            for table in moment.tables:
                if table.table_id == table_id and table.main_location.startswith(f"{metadata.location.rstrip('/')}/"):
                    snapshot = read_metadata(table.main_location, self.storage).current_snapshot
                    if snapshot is not None and snapshot.schema_id == metadata.current_schema_id:
                        yield _FrontierState(moment.frontier, table.main_location, table.main_snapshot_id)
        newest: dict[Lsn, _FrontierState] = {}
        for snapshot in metadata.snapshots.oldest_first():
            frontier = snapshot.summary.frontier
            same_columns = snapshot.schema_id == metadata.current_schema_id
            if frontier is not None and same_columns and not snapshot.summary.copying and not snapshot.is_archive:
                newest[frontier] = _FrontierState(frontier, location, snapshot.snapshot_id)
        yield from newest.values()

    def _from(
        self,
        report: FeedReport,
        table: MirroredTable,
        states: list[_FrontierState],
        latest: _FrontierState,
        feed_location: str,
    ) -> FeedReport:
        """Replays from the first of the states after which there is no reset."""
        feed_scan = f"iceberg_scan({literal(feed_location)})"
        ((reset,),) = self.duckdb.execute(
            f"SELECT max({LSN}) FROM {feed_scan} WHERE {OP} = 'reset' AND {LSN} < {latest.frontier}"
        ).fetchall()
        usable = [state for state in states if reset is None or state.frontier >= reset]
        if not usable or usable[0].frontier >= latest.frontier:
            return replace(report, note="no earlier frontier is in the history since its last reset")
        since = usable[0]
        self.duckdb.execute(
            f"CREATE OR REPLACE TEMP TABLE changes AS SELECT * FROM {feed_scan}"
            f" WHERE {LSN} >= {since.frontier} AND {LSN} < {latest.frontier} AND {OP} <> 'reset'"
        )
        ((number,),) = self.duckdb.execute("SELECT count(*) FROM changes").fetchall()
        present_scan = f"iceberg_scan({literal(latest.location)})"
        self._make_replayed(table, since.scan, present_scan)
        comparison = compare_rows(
            self.duckdb,
            {"heap": "replayed", "lake": present_scan},
            every_raw_text(LakeSchema.of_table(table)),
            ComparedRows(CutLine.of(table)),
            self.shown,
        )
        return replace(
            report,
            since=since.frontier,
            until=latest.frontier,
            changes=number,
            different_rows=comparison.different_rows,
        )

    def _make_replayed(self, table: MirroredTable, before_scan: str, present_scan: str) -> None:
        columns = self._columns(present_scan)
        before, changes = self._columns(before_scan), self._columns("changes")
        self.duckdb.execute(
            f"CREATE OR REPLACE TEMP VIEW before AS SELECT {_listed(columns, before)} FROM {before_scan}"
        )
        # A copy may have brought values that only a raw text column holds, and the stream none.
        lacking = "".join(f", NULL::text AS {identifier(name)}" for name in columns if name not in changes)
        if lacking:
            self.duckdb.execute(f"CREATE OR REPLACE TEMP TABLE changes AS SELECT *{lacking} FROM changes")
        old = self._columns(f"(SELECT unnest({OLD}) FROM changes)") if OLD in changes else []
        self.duckdb.execute(
            (_REPLAY if table.key and not table.keyless else _REPLAY_ROWS).format(
                lsn=LSN,
                seq=SEQ,
                op=OP,
                key=", ".join(map(identifier, table.key)),
                columns=", ".join(map(identifier, columns)),
                old_columns=", ".join(f"{OLD}.{identifier(name)}" if name in old else "NULL" for name in columns),
                same=" AND ".join(f"b.{identifier(name)} = c.{identifier(name)}" for name in table.key),
            )
        )

    def _columns(self, scan: str) -> list[str]:
        return [row[0] for row in self.duckdb.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()]


def _listed(columns: list[str], stored: list[str]) -> str:
    return ", ".join(identifier(name) if name in stored else f"NULL::text AS {identifier(name)}" for name in columns)


def replayed_feeds(
    reports: Sequence[FeedReport], tables: Mapping[str, MirroredTable], replay: MirrorReplay
) -> tuple[FeedReport, ...]:
    """Replays the feeds of these live tables, by name, that have all files."""
    return tuple(
        report
        if report.problem is not None or report.table not in tables
        else replay.replay(report, tables[report.table])
        for report in reports
    )
