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
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from mirror_pump.errors import FileDamaged, FileMissing, LakeError, UsageError
from mirror_pump.lake.document.metadata_files import pinned_location, read_metadata, seam_directory
from mirror_pump.lake.document.next_metadata import moment_metadata
from mirror_pump.lake.storage import StorageOptions, exists, write_bytes
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName, format_lsn
from mirror_pump.ops.reads.state_choice import (
    LeftOutTable,
    Reason,
    StateChoice,
    TablePast,
    readable_frontiers,
    state_at,
)
from mirror_pump.ops.reads.time_travel import PastPoint, history, time_text
from mirror_pump.rest_catalog.attachment_names import Attachment, Latest, NamedMoment, View
from mirror_pump.rest_catalog.protocol import ProtocolError, bad_request
from mirror_pump.source.catalog.pins import Pin, PinnedSet, PinRelation, PinSubject, leased_snapshots, of_snapshots
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.catalog.served_tables import ServedCatalog

_LEASE = "mirror-pump serves "
"""The beginning of a lease's name; the moment's prefix follows."""
_PARALLEL_READS = 8
_ATTACH_ANEW = "attach {name}@latest, which shows the present"


@dataclass
class MomentTable:
    """One table of a moment."""

    table_id: TableId
    snapshot_id: SnapshotId
    location: str | None
    """The metadata file in which the snapshot is the current one; None until a client has needed it."""
    pin: Pin | None = None
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
    pins: PinnedSet
    """The lease. Of a moment that is kept there are none."""
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
        moment = self._chosen(view, None if isinstance(when, Latest) else when)
        with self._lock:
            served = self._served.get(moment.attachment.prefix)
        if served is not None and self._keep(served):
            moment.pins.drop()
            return served
        moment.pins.name(_lease_of(moment.attachment))
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
        kept_moment = self._catalog.kept_moment(name)
        instead = _ATTACH_ANEW.format(name=view)
        if kept_moment is None:
            raise bad_request(
                f"there is no moment {name}; `mirror-pump moment list` shows those that are kept; or {instead}"
            )
        if attached not in (None, kept_moment.frontier):
            raise bad_request(
                f"the moment {name} was dropped since it was attached, and another one was kept under this name; attach"
                f" {view}@{name} anew; or {instead}"
            )
        tables = {
            table.table: MomentTable(table.table_id, table.main_snapshot_id, table.main_location)
            if view is View.MAIN
            else MomentTable(table.table_id, table.snapshot_id, table.metadata_location)
            for table in kept_moment.tables
        }
        return ServedMoment(Attachment(view, kept_moment.frontier, name), tables, {}, self._pins())

    # Choosing snapshots

    def _chosen(self, view: View, when: PastPoint | Lsn | None) -> ServedMoment:
        """The moment of the newest published frontier that is not after `when` (None: of the present one), pinned. An
        LSN is a frontier that a client has read already."""
        pins = self._pins()
        try:
            if when is None:
                states = pins.take_published(slot=self._catalog.slot, lake_alone=True)
                tables = [TablePast(state.lake_name, state) for state in states if state.metadata_location is not None]
            else:
                tables = self._with_pasts(view, self._catalog.tables())
            choice = self._choice(view, tables, when)
            frontier = self._catalog.frontier() if choice.frontier is None else choice.frontier
            missing = _why_missing(choice, tables, view)
            chosen: dict[TableName, MomentTable] = {}
            for table in tables:
                if table.name in choice.chosen:
                    try:
                        shown = self._shown(view, table.state, choice.chosen[table.name], is_newest=when is None)
                    except (FileMissing, FileDamaged):
                        missing[table.name] = str(LeftOutTable(table.name, Reason.DAMAGED))
                    else:
                        chosen[table.name] = shown
            self._pin(pins, chosen, missing)
            return ServedMoment(Attachment(view, frontier), chosen, missing, pins)
        except BaseException:
            pins.drop()
            raise

    def _choice(self, view: View, tables: Sequence[TablePast], when: PastPoint | Lsn | None) -> StateChoice:
        """Raises ProtocolError if nothing can be read at a frontier of the past."""
        try:
            choice = state_at(tables, when, time.time_ns() // 1_000_000)
        except UsageError as error:
            raise bad_request(f"{error}; {_ATTACH_ANEW.format(name=view)}") from None
        if when is None or (choice.chosen and choice.frontier is not None):
            return choice
        if choice.frontier is None:
            raise _nothing_by_then(tables, view)
        reasons = "; ".join(sorted(map(str, choice.left_out.values()))[:3])
        instead = _moments_instead(view, tables, choice.frontier)
        raise bad_request(f"nothing can be read at {format_lsn(choice.frontier)}: {reasons}; {instead}")

    def _shown(self, view: View, state: PublishedState, snapshot_id: SnapshotId, *, is_newest: bool) -> MomentTable:
        if not is_newest:
            return MomentTable(state.table_id, snapshot_id, None)
        if view is View.MAIN and state.has_cutline:
            head = read_metadata(state.pointer, self._storage).current_snapshot_id
            # Without one, the published snapshot is as empty as `main`.
            if head is not None:
                return MomentTable(state.table_id, head, state.pointer)
        return MomentTable(state.table_id, snapshot_id, state.published_location)

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

    def _pin(self, pins: PinnedSet, chosen: dict[TableName, MomentTable], missing: dict[TableName, str]) -> None:
        """Pins what is chosen and not pinned yet, drops other pins, and leaves out what was gone by then."""
        names = {PinSubject(table.table_id, table.snapshot_id): name for name, table in chosen.items()}
        pinned = {PinSubject(TableId(pin.subject), pin.snapshot_id): pin for pin in pins.pins}
        pins.drop([pin for subject, pin in pinned.items() if subject not in names])

        def is_there(pin: Pin) -> bool:
            name = names[PinSubject(TableId(pin.subject), pin.snapshot_id)]
            state = self._catalog.table(name)
            if state is None or state.table_id != pin.subject:
                return False
            chosen[name].pin, chosen[name].found_in = pin, state.pointer
            return read_metadata(state.pointer, self._storage).snapshot(pin.snapshot_id) is not None

        further = [subject for subject in names if subject not in pinned]
        pinned_ids = {pin.subject for pin in pins.take(of_snapshots(further), is_there)} if further else set()
        for subject in further:
            if subject.table_id not in pinned_ids:
                name = names[subject]
                del chosen[name]
                missing[name] = f"{LeftOutTable(name, Reason.THINNED_MEANWHILE)}; {_ATTACH_ANEW.format(name='mirror')}"

    def _pins(self, pins: Sequence[Pin] = ()) -> PinnedSet:
        connections = partial(self._catalog.connection, "pinning a moment")
        return PinnedSet(connections, PinRelation.TABLES, self._lease, pins)

    # Leases

    def _keep(self, moment: ServedMoment) -> bool:
        """Whether the lease is not over; renews it if that is due."""
        attachment = moment.attachment
        with moment.lock:
            if attachment.name is None or moment.pins.is_fresh:
                return moment.pins.keep()
            kept_moment = self._catalog.kept_moment(attachment.name)
            return kept_moment is not None and kept_moment.frontier == attachment.frontier and moment.pins.keep()

    def _leased(self, attachment: Attachment) -> ServedMoment | None:
        """The moment as the lease names it, which another process took, or this one before it was started again."""
        with self._catalog.connection("looking for a lease") as connection:
            pins = self._pins(leased_snapshots(connection, self._catalog.slot, _lease_of(attachment)))
        if not pins.pins or not pins.renew():
            return None
        pinned = {pin.subject: pin for pin in pins.pins}
        chosen: dict[TableName, MomentTable] = {}
        missing: dict[TableName, str] = {}
        for state in self._catalog.tables():
            name, pin = state.lake_name, pinned.get(state.table_id)
            if pin is not None:
                chosen[name] = MomentTable(state.table_id, pin.snapshot_id, None, pin)
            else:
                missing[name] = f"{LeftOutTable(name, Reason.NOT_LEASED)}; {_ATTACH_ANEW.format(name=attachment.view)}"
        return ServedMoment(attachment, chosen, missing, pins)

    def _renew_ended(self, attachment: Attachment) -> ServedMoment:
        """The moment of a lease that is over, as long as the histories still have it."""
        assert attachment.frontier is not None
        self._make_room(attachment.view)
        try:
            moment = self._chosen(attachment.view, attachment.frontier)
        except ProtocolError as error:
            raise bad_request(
                f"the moment {attachment.prefix} is gone: its lease ended after {self._lease:g} s without a load, and"
                f" {error}"
            ) from None
        moment.pins.name(_lease_of(attachment))
        return moment

    def _make_room(self, view: View) -> None:
        """Forgets moments whose leases are over. Raises ProtocolError if there are too many still."""
        with self._lock:
            self._served = {prefix: moment for prefix, moment in self._served.items() if not moment.pins.may_be_over}
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
        assert table.pin is not None
        written = pinned_location(metadata, f"pin {table.pin.pin_id}", seam_directory(metadata))
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
        instead = _moments_instead(attachment.view, self._with_pasts(attachment.view, [state]), attachment.frontier)
        return bad_request(
            f"the history of {state.lake_name} does not have the moment {attachment.prefix} any more; {instead}"
        )


def _lease_of(attachment: Attachment) -> str:
    return _LEASE + attachment.prefix


def _moments_instead(view: View, tables: Collection[TablePast], around: Lsn) -> str:
    """What to attach: the moments nearest to `around` at which all of these tables can be read, each of which was there
    when this was asked, and the present."""
    names = [Attachment(view, point).warehouse for point in readable_frontiers(tables, around)]
    instead = _ATTACH_ANEW.format(name=view)
    return f"attach {' or '.join(names)}, which can be read; or {instead}" if names else instead


def _why_missing(choice: StateChoice, tables: Collection[TablePast], view: View) -> dict[TableName, str]:
    """Why tables are left out, and what shows each of them."""
    pasts = {table.name: table for table in tables}
    return {name: _explained(left_out, pasts.get(name), view) for name, left_out in choice.left_out.items()}


def _explained(left_out: LeftOutTable, table: TablePast | None, view: View) -> str:
    if left_out.reason is Reason.TIERED:
        return f"{left_out}; {_ATTACH_ANEW.format(name='mirror')}"
    if left_out.reason is Reason.BEHIND:
        return f"{left_out}; attach the warehouse `mirror`, in which each table is as of its own frontier"
    if left_out.reason.is_of_history and table is not None and left_out.frontier is not None:
        return f"{left_out}; {_moments_instead(view, [table], left_out.frontier)}"
    return str(left_out)


def _nothing_by_then(tables: Collection[TablePast], view: View) -> ProtocolError:
    """The answer if no table has been published by the time that a client asks for."""
    steps = [step for table in tables for step in table.published]
    if not steps:
        return bad_request(f"the mirrored tables have no history; {_ATTACH_ANEW.format(name=view)}")
    oldest = min(steps, key=lambda step: step.frontier)
    return bad_request(
        "the history of the mirrored tables does not go back that far; the oldest moment that can be read is"
        f" {Attachment(view, oldest.frontier).warehouse} ({time_text(oldest.moment_ms)});"
        f" {_moments_instead(view, tables, oldest.frontier)}"
    )
