"""Brings corrections of rows below T into the lake: a thread reads modak.delta and writes files, the loop publishes.

A fold is a segment like the stream's: every key of it is deleted, and rows that are no tombstones are brought. Below T
nothing else changes main, so a fold races with no stream change, and it is computed against no state at all: what it
deletes is worked out when it is published (`KeyIndexes.encode`). In the same publish S is made anew, and the rows are
marked whose version is still the one that was folded; a row that was corrected again meanwhile stays, and wins over
what was folded, since readers merge it over S.

The same thread has S made anew where it holds on to files that main has exchanged, and clears what nobody needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from queue import SimpleQueue

import pyarrow as pa

from decoders.text import parse_rows
from mirror_pump.engine.segment_tasks import row_keys
from mirror_pump.errors import ConnectionLost, LakeError, SourceError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.format.manifest_list import read_list
from mirror_pump.lake.format.metadata import archive_snapshot, read_metadata
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields, widened
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.index_plan import SegmentKeys
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StagedFiles, StorageOptions, delete
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.backoff import Backoff
from mirror_pump.pipeline.flow.events import ArchiveBranchOutdated, Event, FoldReady, IndexWanted
from mirror_pump.pipeline.flow.requests import DeltaFold, SegmentChange
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.flow.thread_end import ThreadStopped, reporting
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.key_index.table_index import IndexPhase
from mirror_pump.pipeline.upkeep.jobs import outcome
from mirror_pump.source.catalog.tables import load_table, load_tables
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention.corrections import (
    Correction,
    CorrectionBacklog,
    clear,
    read_backlog,
    read_corrections,
)

_LOOK_INTERVAL = 1.0
"""Seconds between looks at modak.delta, at most: often enough for the shortest fold age that makes sense."""
_STALE_INTERVAL = 30.0
"""Seconds between looks at whether S holds on to files that main does not have any more."""
_INDEX_PATIENCE = 60.0
"""Seconds that a fold waits for the table's key index to be built: without one it deletes by key, and engines that read
no equality deletes have to do without the newest snapshot until these are resolved."""
_INDEX_PAUSE = 300.0
"""Seconds before a table that could have no index, or was waited for in vain, is asked for again."""
_STALE_AGE = 60.0
"""Seconds that an S lives at least before it is made anew for that alone: each costs a manifest list."""


@dataclass(frozen=True)
class FoldSettings:
    age: float
    """Seconds after which a correction is folded."""
    rows: int
    """Corrections from which on a table is due at once; and of one fold, at most."""


@dataclass
class _FoldTurn(Backoff):
    """What is known of one table: its last fold may have failed."""

    looked_at: str = ""
    """Metadata file in which S was last compared with main."""
    sequence_numbers: Mapping[int, int] = field(default_factory=dict)
    known_location: str = ""
    index_awaited_until: float | None = None
    """time.monotonic() up to which folds wait for the key index, seconds."""
    index_not_before: float = 0.0
    """... before which they do without."""


class Folder:
    """A thread that folds corrections of all tables of one mirror, one after the other."""

    def __init__(
        self,
        connect: Callable[[], PgConnection],
        storage: StorageOptions,
        inbox: SimpleQueue[Event],
        slot: str,
        indexes: KeyIndexes,
        settings: FoldSettings,
        observer: Observer,
    ) -> None:
        self._connect = connect
        self._storage = storage
        self._inbox = inbox
        self._slot = slot
        self._indexes = indexes
        self._settings = settings
        self._observer = observer
        self._turns: dict[TableId, _FoldTurn] = {}
        self._compared_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a fold that was not published is forgotten, and will be computed again."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with reporting(self._inbox), self._connect() as connection:
            while not self._stopping.is_set():
                again = False
                for backlog in read_backlog(connection, self._slot, self._settings.rows):
                    again |= self._look(connection, backlog)
                if time.monotonic() - self._compared_at >= _STALE_INTERVAL:
                    self._compared_at = time.monotonic()
                    self._compare(connection)
                if not again:
                    self._stopping.wait(min(_LOOK_INTERVAL, max(self._settings.age, 0.02)))

    def _look(self, connection: PgConnection, backlog: CorrectionBacklog) -> bool:
        """Does what is due at one table; whether there is more."""
        turn = self._turns.setdefault(backlog.table_id, _FoldTurn())
        if self._stopping.is_set() or not turn.due:
            return False
        table = load_table(connection, backlog.table_id)
        if table is None or table.tier is None:
            return False
        try:
            if backlog.folded:
                clear(connection, table.table_id, lambda location: self._sequence_numbers(turn, location))
            due = backlog.rows >= self._settings.rows or backlog.age >= self._settings.age
            folded = (
                bool(backlog.rows and due) and self._indexed(turn, table, backlog) and self._fold(connection, table)
            )
        except ConnectionLost:
            raise
        except (LakeError, TableError, SourceError, ValueError) as error:
            turn.put_off()
            self._observer(Step.FOLD_FAILED, table=str(table.name), error=str(error))
            return False
        turn.pause = 0.0
        return folded and backlog.rows >= self._settings.rows

    def _indexed(self, turn: _FoldTurn, table: MirroredTable, backlog: CorrectionBacklog) -> bool:
        """Whether to fold now: the table has its key index, can have none, or was waited for long enough."""
        now = time.monotonic()
        phase = self._indexes.phase(table)
        if phase in (IndexPhase.READY, IndexPhase.FOLLOWING) or now < turn.index_not_before:
            turn.index_awaited_until = None
            return True
        if turn.index_awaited_until is None:
            turn.index_awaited_until = now + _INDEX_PATIENCE
        if now < turn.index_awaited_until and (phase is IndexPhase.BUILDING or self._index_comes(table, backlog)):
            return False
        turn.index_awaited_until, turn.index_not_before = None, now + _INDEX_PAUSE
        return True

    def _index_comes(self, table: MirroredTable, backlog: CorrectionBacklog) -> bool:
        """Asks for the table's key index: whether it may be waited for. True also if the session ends meanwhile."""
        answer: Future[bool] = Future()
        self._inbox.put(IndexWanted(table, backlog.rows, answer))
        try:
            return outcome(answer, self._stopping.is_set)
        except (CancelledError, ThreadStopped):
            return True

    def _fold(self, connection: PgConnection, table: MirroredTable) -> bool:
        """One fold; whether it landed."""
        assert table.tier is not None
        began = time.time()
        corrections = read_corrections(connection, table, self._settings.rows)
        if not corrections:
            return False
        fold = write_fold(table, table.tier.cut, corrections, self._indexes.packing(table), self._storage)
        answer: Future[bool] = Future()
        self._inbox.put(FoldReady(table, fold, began, answer))
        try:
            landed = outcome(answer, self._stopping.is_set)
        except (CancelledError, ThreadStopped):
            return False
        if not landed:
            for file in (*fold.segment.files.data, *fold.segment.files.deletes):
                delete(file.path, self._storage)
        return landed

    def _compare(self, connection: PgConnection) -> None:
        """Has S made anew where it names files that main does not."""
        for table in load_tables(connection, self._slot):
            if self._stopping.is_set():
                return
            if table.tier is None or not table.tier.moved:
                continue
            turn = self._turns.setdefault(table.table_id, _FoldTurn())
            try:
                location = _location(connection, table)
                if location is not None and location != turn.looked_at:
                    turn.looked_at = location
                    if archive_is_outdated(LakeTable.load(location, self._storage), self._storage, _STALE_AGE):
                        self._inbox.put(ArchiveBranchOutdated(table))
            except LakeError as error:
                self._observer(Step.FOLD_FAILED, table=str(table.name), error=str(error))

    def _sequence_numbers(self, turn: _FoldTurn, location: str) -> Mapping[int, int]:
        if turn.known_location != location:
            snapshots = read_metadata(location, self._storage)["snapshots"]
            turn.sequence_numbers = {int(one["snapshot-id"]): int(one["sequence-number"]) for one in snapshots}
            turn.known_location = location
        return turn.sequence_numbers


def write_fold(
    table: MirroredTable,
    cut: int,
    corrections: Sequence[Correction],
    packing: KeyPacking | None,
    storage: StorageOptions,
) -> DeltaFold:
    """Writes the files of a fold of these corrections, which are in the order of their versions.

    Raises LakeError, and ValueError for a value that its column cannot have.
    """
    schema = LakeSchema.of_table(table)
    places = [place for place, column in enumerate(table.columns) if column.name in table.key]
    # Two canonical keys can be one key (numeric 1.0 and 1.00): the later correction counts.
    newest = {tuple(one.values[place] for place in places): one for one in corrections}
    rows = [one.values for one in newest.values() if not one.tombstone]
    # By the stream's own parsers.
    gone, _ = parse_rows(list(newest), {column.name: column.type for column in table.key_columns})
    values, raw = parse_rows(rows, {column.name: column.type for column in table.columns})
    deleted, brought = pa.table(gone), pa.table(values)
    data: tuple[WrittenFile, ...] = ()
    beside: frozenset[int] = frozenset()
    versions = tuple((one.pk, one.version) for one in corrections)
    with StagedFiles(storage) as written:
        if rows:
            wide, file_schema = narrowed(widened(brought, raw, schema), schema)
            beside = raw_text_fields(file_schema)
            data = (write_data_file(wide, file_schema, table.location, storage),)
            written.own(data[0].path)
        if packing is not None:
            keys = SegmentKeys(
                schema=schema,
                deleted=deleted,
                packed=packing.pack(deleted.columns),
                packing=packing,
                rows=(row_keys(brought, schema, packing),) if rows else (),
                may_be_absent=True,
            )
            return DeltaFold(SegmentChange(SegmentFiles(data, ()), keys), versions, cut, beside)
        deletes = (write_equality_deletes(deleted, schema, table.location, storage),)
        return DeltaFold(SegmentChange(SegmentFiles(data, deletes)), versions, cut, beside)


def archive_is_outdated(table: LakeTable, storage: StorageOptions, age: float) -> bool:
    """Whether S, if it is `age` seconds old, names a file that main does not have any more, of data or of deletes."""
    head = archive_snapshot(table.metadata)
    if head is None or time.time() * 1000 - int(head["timestamp-ms"]) < age * 1000:
        return False
    listing = Listing(storage)
    main = {one.path for files in listing.files(table.manifests).values() for one in files}
    known = {one.path for one in table.manifests}
    others = [one for one in read_list(head["manifest-list"], storage) if one.path not in known]
    for files in Listing(storage).files(others).values():
        # Its own hiding deletes are in no other snapshot, and named by all S of one T.
        if any(one.path not in main and not one.path.endswith(_POSITIONS) for one in files):
            return True
    return False


_POSITIONS = "-positions.parquet"
"""How names of position-delete files of ours end."""


def _location(connection: PgConnection, table: MirroredTable) -> str | None:
    row = connection.execute(
        "SELECT metadata_location FROM modak.iceberg_tables"
        " WHERE catalog_name = 'lake' AND table_namespace = %s AND table_name = %s",
        (table.name.schema, table.lake_table),
    ).fetchone()
    return None if row is None else str(row[0])
