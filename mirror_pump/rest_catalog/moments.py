"""Moments: one snapshot of each table, all at one frontier, kept by a lease as long as a client reads them.

Invariant: all tables of a moment are as of its frontier, in every load, for everybody who attached it. The snapshots
are chosen once, and the lease names them: who serves the moment later (after a restart, or in another process) takes
them from there. Without a lease they are chosen again, from histories (`mirror_pump.ops.reads.state_choice`), which
gives the same rows or refuses.

A table that cannot be shown at the frontier is not part of the moment, and loading it says why.

A moment that is kept under a name (mirror_pump/ops/moments/keeping.py) has its snapshots and their metadata files in
the catalog. It needs no lease: what it names stays until it is dropped, and then for the time of a lease. So its server
looks more often than that whether it is still there.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mirror_pump.errors import FileDamaged, FileMissing, LakeError, UsageError
from mirror_pump.lake.document.metadata_files import read_metadata, seam_directory
from mirror_pump.lake.document.next_metadata import moment_metadata
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, exists, join, write_bytes
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName, format_lsn
from mirror_pump.ops.reads.state_choice import LeftOut, Reason, TablePast, state_at
from mirror_pump.ops.reads.time_travel import PastPoint, history
from mirror_pump.rest_catalog.attachment_names import Attachment, Latest, NamedMoment, View
from mirror_pump.rest_catalog.protocol import ProtocolError, bad_request
from mirror_pump.rest_catalog.readable_moments import ATTACH_ANEW, explained, moments_instead, nothing_by_then
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.catalog.served_tables import ServedCatalog

_LEASE = "mirror-pump serves "
"""The beginning of a lease's name; the moment's prefix follows."""
_PARALLEL_READS = 8
_RENEWED_AFTER = 1 / 3
"""Share of a lease's duration after which a load renews it."""


@dataclass
class MomentTable:
    """One table of a moment."""

    table_id: TableId
    snapshot_id: SnapshotId
    location: str | None
    """The metadata file in which the snapshot is the current one; None until a client has needed it."""
    pin_id: int = 0
    found_in: str | None = None
    """A metadata file that had the snapshot in its history after it was pinned. A publish that began before may
    have thinned it out since, but deleted nothing."""


@dataclass
class ServedMoment:
    """The tables as of one frontier."""

    attachment: Attachment
    tables: Mapping[TableName, MomentTable]
    missing: Mapping[TableName, str]
    """Mirrored tables that cannot be shown at this frontier, and why."""
    pins: tuple[int, ...]
    renewed: float
    """When the lease was renewed, by time.monotonic()."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Moments:
    """The moments that clients read. Threads share it."""

    def __init__(self, catalog: ServedCatalog, storage: StorageOptions, lease: float, most: int) -> None:
        """`lease`: seconds that a moment lasts after its last load. `most`: how many there may be at a time."""
        self._catalog = catalog
        self._storage = storage
        self._lease = lease
        self._most = most
        self._lock = threading.Lock()
        self._served: dict[str, ServedMoment] = {}

    def attach(self, view: View, when: PastPoint | Latest | NamedMoment) -> ServedMoment:
        """The moment that a client asks for, pinned. Raises ProtocolError if there is none, SourceError, LakeError."""
        self._make_room(view)
        if isinstance(when, NamedMoment):
            named = self._named(view, when.name)
            with self._lock:
                return self._served.setdefault(named.attachment.prefix, named)
        moment = self._latest(view) if isinstance(when, Latest) else self._past(view, when)
        with self._lock:
            served = self._served.get(moment.attachment.prefix)
        if served is not None and self._keep(served):
            self._catalog.release(moment.pins)
            return served
        self._catalog.name_lease(_lease_of(moment.attachment), moment.pins)
        with self._lock:
            self._served[moment.attachment.prefix] = moment
        return moment

    def find(self, attachment: Attachment) -> ServedMoment:
        """The moment of a client that attached it before, with its lease renewed. Raises ProtocolError if it is gone,
        SourceError, LakeError."""
        with self._lock:
            served = self._served.get(attachment.prefix)
        if served is not None and self._keep(served):
            return served
        with self._lock:
            self._served.pop(attachment.prefix, None)
        if attachment.name is not None:
            moment = self._named(attachment.view, attachment.name, attached=attachment.frontier)
        else:
            moment = self._leased(attachment) or self._renew_ended(attachment)
        with self._lock:
            return self._served.setdefault(attachment.prefix, moment)

    def location(self, moment: ServedMoment, name: TableName) -> str:
        """The metadata file of a table of the moment. Raises ProtocolError if it is not part of it, LakeError."""
        table = moment.tables.get(name)
        if table is None:
            raise bad_request(moment.missing[name])
        if table.location is None:
            # Two engines may load it at the same time: both write the same, and neither removes it.
            table.location = self._write(moment, name, table)
        return table.location

    def _named(self, view: View, name: str, *, attached: Lsn | None = None) -> ServedMoment:
        """A moment that is kept. `attached`: the frontier that a client has read under this name already. Raises
        ProtocolError if there is none of that name and frontier."""
        kept = self._catalog.kept_moment(name)
        instead = ATTACH_ANEW.format(name=view)
        if kept is None:
            raise bad_request(
                f"there is no moment {name}; `mirror-pump moment list` shows those that are kept; or {instead}"
            )
        if attached not in (None, kept.frontier):
            raise bad_request(
                f"the moment {name} was dropped since it was attached, and another one was kept under this name; attach"
                f" {view}@{name} anew; or {instead}"
            )
        tables = {
            table.table: MomentTable(table.table_id, table.main_snapshot_id, table.main_location)
            if view is View.MAIN
            else MomentTable(table.table_id, table.snapshot_id, table.metadata_location)
            for table in kept.tables
        }
        return ServedMoment(Attachment(view, kept.frontier, name), tables, {}, (), time.monotonic())

    # Choosing snapshots

    def _latest(self, view: View) -> ServedMoment:
        states, pins = self._catalog.published(self._lease)
        try:
            tables = [TablePast(state.lake_name, state) for state in states]
            choice = state_at(tables, None)
            frontier = self._catalog.frontier() if choice.frontier is None else choice.frontier
            missing = explained(choice, tables, view)
            chosen: dict[TableName, MomentTable] = {}
            further: dict[TableId, SnapshotId] = {}
            for state in states:
                name = state.lake_name
                if name not in choice.chosen:
                    continue
                chosen[name] = MomentTable(state.table_id, state.snapshot_id, state.published_location)
                if view is View.MAIN and state.has_cutline:
                    try:
                        head = read_metadata(state.pointer, self._storage).current_snapshot_id
                    except (FileMissing, FileDamaged):
                        del chosen[name]
                        missing[name] = str(LeftOut(name, Reason.DAMAGED))
                        continue
                    # Without one, the published snapshot is as empty as `main`.
                    if head is not None:
                        chosen[name] = MomentTable(state.table_id, head, state.pointer)
                        further[state.table_id] = head
            kept = {entry.table_id for entry in chosen.values()} - further.keys()
            used = tuple(pin for table_id, pin in pins.items() if table_id in kept)
        except BaseException:
            self._catalog.release(tuple(pins.values()))
            raise
        self._catalog.release([pin for pin in pins.values() if pin not in used])
        return self._pinned(Attachment(view, frontier), chosen, missing, further, used)

    def _past(self, view: View, when: PastPoint | Lsn) -> ServedMoment:
        """The moment of the newest published frontier that is not after `when`. An LSN is a frontier that a client has
        read already."""
        tables = self._with_pasts(view, self._catalog.tables())
        try:
            choice = state_at(tables, when, time.time_ns() // 1_000_000)
        except UsageError as error:
            raise bad_request(f"{error}; {ATTACH_ANEW.format(name=view)}") from None
        frontier = choice.frontier
        if frontier is None:
            raise nothing_by_then(tables, view)
        missing = explained(choice, tables, view)
        if not choice.chosen:
            reasons = "; ".join(sorted(map(str, choice.left_out.values()))[:3])
            instead = moments_instead(view, tables, frontier)
            raise bad_request(f"nothing can be read at {format_lsn(frontier)}: {reasons}; {instead}")
        table_ids = {table.name: table.state.table_id for table in tables}
        chosen = {name: MomentTable(table_ids[name], snapshot_id, None) for name, snapshot_id in choice.chosen.items()}
        further = {table.table_id: table.snapshot_id for table in chosen.values()}
        return self._pinned(Attachment(view, frontier), chosen, missing, further, ())

    def _with_pasts(self, view: View, states: Sequence[PublishedState]) -> list[TablePast]:
        """The tables with what is left of their histories. Raises LakeError."""
        errors: list[LakeError] = []

        def read(state: PublishedState) -> TablePast:
            past = None
            if state.is_readable and not state.is_tiered:
                try:
                    metadata = read_metadata(state.pointer, self._storage)
                except (FileMissing, FileDamaged) as error:
                    errors.append(error)
                else:
                    archive = view is View.PUBLISHED and state.has_cutline
                    past = history(metadata, state.complete_from, archive=archive)
            return TablePast(state.lake_name, state, past)

        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="rest-catalog") as pool:
            tables = list(pool.map(read, states))
        if errors and all(table.past is None for table in tables):
            # No table can be read: the storage is away.
            raise errors[0]
        return tables

    def _pinned(
        self,
        attachment: Attachment,
        chosen: dict[TableName, MomentTable],
        missing: dict[TableName, str],
        further: Mapping[TableId, SnapshotId],
        pins: Sequence[int],
    ) -> ServedMoment:
        """The moment, once the snapshots in `further` are pinned as well and were still there after that."""
        further_pins = dict(self._catalog.pin(further, self._lease)) if further else {}
        all_pins = (*pins, *further_pins.values())
        try:
            for name, table in list(chosen.items()):
                if table.table_id in further and not self._is_there(name, table, further_pins):
                    del chosen[name]
                    # A sweep refuses to work while a snapshot is pinned that it does not find.
                    self._catalog.release([further_pins.pop(table.table_id)] if table.table_id in further_pins else [])
                    missing[name] = f"{LeftOut(name, Reason.THINNED_MEANWHILE)}; {ATTACH_ANEW.format(name='mirror')}"
        except BaseException:
            self._catalog.release(all_pins)
            raise
        return ServedMoment(attachment, chosen, missing, (*pins, *further_pins.values()), time.monotonic())

    def _is_there(self, name: TableName, table: MomentTable, pins: Mapping[TableId, int]) -> bool:
        """Whether the table's snapshot was still there after it was pinned. Notes where."""
        state = self._catalog.table(name)
        if state is None or state.table_id != table.table_id or table.table_id not in pins:
            return False
        if read_metadata(state.pointer, self._storage).snapshot(table.snapshot_id) is None:
            return False
        table.pin_id, table.found_in = pins[table.table_id], state.pointer
        return True

    # Leases

    def _keep(self, moment: ServedMoment) -> bool:
        """Whether the lease is not over; renews it if that is due."""
        with moment.lock:
            now = time.monotonic()
            if now - moment.renewed < self._lease * _RENEWED_AFTER:
                return True
            if not self._still_there(moment):
                return False
            moment.renewed = now
            return True

    def _still_there(self, moment: ServedMoment) -> bool:
        """Renews the lease; of a moment that is kept, says whether it still is."""
        attachment = moment.attachment
        if attachment.name is None:
            return self._catalog.renew(moment.pins, self._lease)
        kept = self._catalog.kept_moment(attachment.name)
        return kept is not None and kept.frontier == attachment.frontier

    def _leased(self, attachment: Attachment) -> ServedMoment | None:
        """The moment as the lease names it, which another process took, or this one before it was started again."""
        leased = self._catalog.leased(_lease_of(attachment))
        pins = tuple(row.pin_id for row in leased)
        if not pins or not self._catalog.renew(pins, self._lease):
            return None
        pinned = {row.table_id: row for row in sorted(leased, key=lambda row: row.pin_id)}
        chosen: dict[TableName, MomentTable] = {}
        missing: dict[TableName, str] = {}
        for state in self._catalog.tables():
            name, pin = state.lake_name, pinned.get(state.table_id)
            if pin is not None:
                chosen[name] = MomentTable(state.table_id, pin.snapshot_id, None, pin.pin_id)
            else:
                missing[name] = f"{LeftOut(name, Reason.NOT_LEASED)}; {ATTACH_ANEW.format(name=attachment.view)}"
        return ServedMoment(attachment, chosen, missing, pins, time.monotonic())

    def _renew_ended(self, attachment: Attachment) -> ServedMoment:
        """The moment of a lease that is over, as long as the histories still have it."""
        assert attachment.frontier is not None
        self._make_room(attachment.view)
        try:
            moment = self._past(attachment.view, attachment.frontier)
        except ProtocolError as error:
            raise bad_request(
                f"the moment {attachment.prefix} is gone: its lease ended after {self._lease:g} s without a load, and"
                f" {error}"
            ) from None
        self._catalog.name_lease(_lease_of(attachment), moment.pins)
        return moment

    def _make_room(self, view: View) -> None:
        """Forgets moments whose leases are over. Raises ProtocolError if there are too many still."""
        with self._lock:
            now = time.monotonic()
            self._served = {
                prefix: moment for prefix, moment in self._served.items() if now - moment.renewed < self._lease
            }
            if len(self._served) >= self._most:
                raise ProtocolError(
                    503,
                    "ServiceUnavailableException",
                    f"{self._most} moments are being read, which is the most: attach again in some minutes,"
                    f" or attach {view}, which is of no moment",
                )

    def _write(self, moment: ServedMoment, name: TableName, table: MomentTable) -> str:
        state = next((state for state in self._catalog.tables() if state.table_id == table.table_id), None)
        if state is None:
            raise bad_request(f"{name} is not mirrored any more")
        if state.snapshot_id == table.snapshot_id:
            return state.published_location
        metadata = read_metadata(table.found_in or state.pointer, self._storage)
        written = moment_location(metadata, table.pin_id)
        if exists(written, self._storage):
            return written
        snapshot = metadata.snapshot(table.snapshot_id)
        if snapshot is None:
            raise self._left_history(moment.attachment, state)
        if snapshot.summary.seam_metadata:
            # Archive snapshots have a file of this kind, which stays with them.
            return snapshot.summary.seam_metadata
        write_bytes(written, moment_metadata(metadata, snapshot).to_json(), self._storage)
        return written

    def _left_history(self, attachment: Attachment, state: PublishedState) -> ProtocolError:
        """The answer for a table of a moment whose snapshot is not found any more."""
        assert attachment.frontier is not None
        instead = moments_instead(attachment.view, self._with_pasts(attachment.view, [state]), attachment.frontier)
        return bad_request(
            f"the history of {state.lake_name} does not have the moment {attachment.prefix} any more; {instead}"
        )


def _lease_of(attachment: Attachment) -> str:
    return _LEASE + attachment.prefix


def moment_location(metadata: TableMetadata, pin_id: int) -> str:
    """Where the metadata file is in which the pinned snapshot is the current one.

    Engines take a table's state from the metadata that a catalog answers, but for ClickHouse, which opens the file that
    `metadata-location` names. So each state that is shown has a file. It is written once for each lease, beside those
    of archive snapshots, under a name that follows from the pin; a process that writes it again writes the same state.
    ClickHouse opens files only that are named as Iceberg's own: N-uuid.metadata.json. The sweep takes a number above
    the table's newest for that of a publish under way, so it is 0.

    The sweep leaves it as long as the pin lasts, since it is younger than the pinned snapshot, and deletes it as any
    file that nothing refers to once that is over. The name is the pin's, and not the snapshot's, because of a sweep
    that is under way when a reader pins the snapshot again: it may be about to delete the file of the former pin.
    """
    name = uuid.uuid5(uuid.UUID(metadata.table_uuid), f"pin {pin_id}")
    return join(seam_directory(metadata), f"00000-{name}.metadata.json")
