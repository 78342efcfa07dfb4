"""One round of a follower: its tables are made to show what is published.

Invariant: what a follower may show is pinned, so no sweep takes files of it. The new state is pinned before it is read
(`PinnedSet.take_published`), recorded before the follower may show it (`next_snapshot_id`), and what it showed before
stays pinned until the answer was recorded. So a process may die at any step: the next round looks at what is there.

Nothing is taken back. A table that another program has committed to, or that is not this follower's, stays as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from mirror_pump.errors import FollowerAway, FollowerError, LakeError, MirrorPumpError, one_line_of, with_remedy
from mirror_pump.lake.storage import StorageOptions, delete_tree, discard, list_files, write_bytes
from mirror_pump.model import Lsn, SnapshotId, TableId, format_lsn
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.follower_tables import (
    FOLLOWER,
    FRONTIER,
    FollowerTableState,
    ShownTable,
    TableMove,
    move_to,
    shown_table,
    state_of,
)
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.source.catalog.followers import (
    FILES_STAY,
    Follower,
    FollowerTable,
    Identifier,
    delete_table,
    note_begun,
    note_reached,
    require_follower,
    store_tables,
    tables_of,
)
from mirror_pump.source.catalog.pins import PinnedSet, PinRelation, leased_snapshots
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.connect import PgConnection, source_errors

_TOGETHER = 60.0
"""Seconds for which a follower may be behind before its tables go on without one for which its catalog fails."""
_NOTHING = (None,) * 5
"""A table of which nothing was seen there."""


@dataclass(frozen=True)
class _Moving:
    """A table whose move is prepared."""

    identifier: Identifier
    state: PublishedState
    move: TableMove
    intent: FollowerTable
    """As it is now, and is about to be."""
    moved: FollowerTable
    """As it is once it has moved."""


class FollowerRound:
    """One round, of the one program that has the follower's lock."""

    def __init__(
        self,
        connection: PgConnection,
        follower: Follower,
        catalog: FollowerCatalog,
        storage: StorageOptions,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`step` is called after each step, with its name."""
        self._connection = connection
        self._follower = follower
        self._catalog = catalog
        self._storage = storage
        self._step = step
        self._records: dict[tuple[TableId, Lsn], FollowerTable] = {}
        self._failure: FollowerAway | None = None
        """What did not succeed for one table, and may in a moment: then the whole round is begun again."""

    def run(self, *, examine: bool) -> None:
        """Follows. `examine`: looks at all tables there, not only at those that have changed. Raises FollowerError if
        the catalog does not answer, SourceError. What concerns one table is recorded as its error."""
        self._records = {table.registration: table for table in tables_of(self._connection, self._follower)}
        if self._follower.frontier != self._follower.published:
            note_begun(self._connection, self._follower)
        pins = self._pins()
        try:
            states = self._pinned_states(pins)
            self._drop_ended(states, examine=examine)
            identified = self._identified(states)
            self._move_all(identified, examine=examine)
        finally:
            self._drop_pins(pins)
        if examine:
            pins.renew()
        if self._failure is not None:
            raise self._failure
        frontier: Lsn | None = None
        if not any(record.error for record in self._records.values()):
            # The states were read after what the catalog said is published.
            frontier = max([self._follower.published, *(state.frontier or Lsn(0) for state in identified.values())])
            self._note_frontier(frontier, examine=examine)
        moves_together = self._catalog.moves_together
        note_reached(self._connection, self._follower, frontier, moves_together=moves_together, examined=examine)

    # Pins

    def _pins(self) -> PinnedSet:
        with source_errors("reading a follower's pins"):
            pins = leased_snapshots(self._connection, self._follower.slot, self._follower.lease)
        return PinnedSet(lambda: nullcontext(self._connection), PinRelation.TABLES, FILES_STAY, pins)

    def _pinned_states(self, pins: PinnedSet) -> Sequence[PublishedState]:
        with source_errors("pinning what a follower is to show"), self._connection.transaction():
            # One that is removed meanwhile must not leave pins.
            require_follower(self._connection, self._follower)
            leased = {pin.pin_id for pin in pins.pins}
            states = pins.take_published(slot=self._follower.slot, lake_alone=True)
            pins.name(self._follower.lease, [pin for pin in pins.pins if pin.pin_id not in leased])
        self._step("pinned")
        return states

    def _drop_pins(self, pins: PinnedSet) -> None:
        """Those of what no table there may show."""
        shown: set[tuple[TableId, SnapshotId | None]] = set()
        for table in self._records.values():
            shown |= {(table.table_id, table.snapshot_id), (table.table_id, table.next_snapshot_id)}
        pins.drop([pin for pin in pins.pins if (TableId(pin.subject), pin.snapshot_id) not in shown])

    # Tables that end

    def _drop_ended(self, states: Collection[PublishedState], *, examine: bool) -> None:
        """Tables that are not registered any more, or under another name."""
        names = {(state.table_id, state.start_lsn): self._follower.identifier(state.lake_name) for state in states}
        for record in list(self._records.values()):
            if names.get(record.registration) == record.identifier or (record.error is not None and not examine):
                continue
            try:
                self.drop(record)
            except (FollowerError, LakeError) as error:
                self._refuse(record, error)

    def drop(self, record: FollowerTable) -> None:
        """Drops a table there, unless it is another's, and the files that the mirror wrote for it. Raises FollowerError
        if another program has committed to it, LakeError."""
        has_files = bool(record.directory) and any(list_files(record.directory, self._storage))
        # No catalog drops a table on a condition: it is looked at right before.
        state = state_of(self._catalog.load(record.identifier), self._follower, record.table_uuid)
        if state is FollowerTableState.CHANGED:
            raise _changed(self._follower, record.identifier)
        missing = state is FollowerTableState.MISSING
        # Catalogs call a table missing whose metadata file is: `unregister --drop-lake` has removed it.
        if state is FollowerTableState.BEHIND or (missing and record.directory and not has_files):
            self._catalog.drop(record.identifier)
            self._step("dropped")
        if has_files and (missing or state is FollowerTableState.BEHIND):
            delete_tree(record.directory, self._storage)
        delete_table(self._connection, self._follower, record)
        self._records.pop(record.registration, None)

    # Tables that move

    def _identified(self, states: Sequence[PublishedState]) -> Mapping[Identifier, PublishedState]:
        """Those that can be read, by their names there. One whose name another one has is left out, and says so."""
        identified: dict[Identifier, PublishedState] = {}
        # One that is there already keeps its name.
        for state in sorted(states, key=lambda state: (not self._is_there(state), state.table_id)):
            identifier = self._follower.identifier(state.lake_name)
            other = identified.setdefault(identifier, state)
            if other is not state and _can_follow(state):
                error = one_line_of(with_remedy(_same_name(self._follower, identifier, state, other)))
                self._record([replace(self._record_of(state, identifier), error=error)])
        return {identifier: state for identifier, state in identified.items() if _can_follow(state)}

    def _is_there(self, state: PublishedState) -> bool:
        record = self._records.get((state.table_id, state.start_lsn))
        return record is not None and bool(record.directory)

    def _record_of(self, state: PublishedState, identifier: Identifier) -> FollowerTable:
        registration = state.table_id, state.start_lsn
        unregistered = FollowerTable(*registration, list(identifier[:-1]), identifier[-1], "", "", *_NOTHING)
        return self._records.get(registration, unregistered)

    def _move_all(self, states: Mapping[Identifier, PublishedState], *, examine: bool) -> None:
        together = self._catalog.moves_together
        moving: list[_Moving] = []
        for identifier, state in states.items():
            record = self._records.get((state.table_id, state.start_lsn))
            if record is not None and not examine and _rests(record, state):
                continue
            # One that could not be dropped under its former name waits for that.
            if record is None or record.identifier == identifier:
                prepared = self._attempt(identifier, state, commit=not together)
                if prepared is not None:
                    moving.append(prepared)
        if not moving or (self._failure is not None and self._is_patient):
            return
        self._record([each.intent for each in moving])
        self._step("intended")
        try:
            accepted = self._catalog.commit_together([each.move for each in moving])
        except FollowerAway as error:
            self._fail(error)
            return
        if accepted:
            self._step("committed")
            self._record([each.moved for each in moving])
            return
        # A table that is refused must not stop the others.
        for each in moving:
            self._attempt(each.identifier, each.state, commit=True)

    def _attempt(self, identifier: Identifier, state: PublishedState, *, commit: bool) -> _Moving | None:
        """Registers or moves a table. Without `commit`, returns the move that is left to be made."""
        try:
            prepared = self._prepared(identifier, state)
            if prepared is None or not commit:
                return prepared
            self._record([prepared.intent])
            self._step("intended")
            self._catalog.commit(prepared.move)
            self._step("committed")
            self._record([prepared.moved])
        except (FollowerError, LakeError) as error:
            self._refuse(self._record_of(state, identifier), error)
        return None

    def _prepared(self, identifier: Identifier, state: PublishedState) -> _Moving | None:
        """The move of a table; None if it shows what is published, maybe since it was registered just now."""
        record = self._records.get((state.table_id, state.start_lsn))
        table = self._catalog.load(identifier)
        shown = shown_table(self._follower, state, None if record is None else record.directory, self._storage)
        table_uuid = str(shown.metadata.table_uuid)
        there = state_of(table, self._follower, table_uuid)
        if there is FollowerTableState.CHANGED:
            raise _changed(self._follower, identifier)
        if there is FollowerTableState.FOREIGN:
            raise _foreign(self._follower, identifier)
        shown_there = table if isinstance(table, Table) else None
        current = None if shown_there is None else shown_there.metadata.current_snapshot_id
        intent = FollowerTable(
            *(state.table_id, state.start_lsn, list(identifier[:-1]), identifier[-1], table_uuid, shown.directory),
            snapshot_id=None if current is None else SnapshotId(current),
            next_snapshot_id=state.snapshot_id,
            published_location=None,
            metadata_location=None if shown_there is None else shown_there.metadata_location,
            error=None,
        )
        moved = replace(
            intent,
            snapshot_id=state.snapshot_id,
            next_snapshot_id=None,
            published_location=state.published_location,
        )
        move: TableMove | None = None
        if shown_there is not None and there is FollowerTableState.BEHIND:
            move = move_to(shown, shown_there)
        if move is None or not self._catalog.takes(move):
            self._record([intent])
            self._step("intended")
            moved = self._registered(identifier, shown, moved, replaces=shown_there)
        elif move.updates:
            return _Moving(identifier, state, move, intent, moved)
        self._record([moved])
        return None

    def _registered(
        self, identifier: Identifier, shown: ShownTable, moved: FollowerTable, *, replaces: Table | None
    ) -> FollowerTable:
        write_bytes(shown.location, shown.content, self._storage)
        if replaces is not None:
            # No commit makes it what it is to show, and no catalog drops a table on a condition.
            table = self._catalog.load(identifier)
            if not isinstance(table, Table) or table.metadata_location != replaces.metadata_location:
                raise _changed(self._follower, identifier)
            self._catalog.drop(identifier)
            self._step("dropped")
        table = self._catalog.register(identifier, shown.location, {FOLLOWER: self._follower.follower_id})
        if table is None:
            discard([shown.location], self._storage)
            raise _foreign(self._follower, identifier)
        self._step("registered")
        return replace(moved, metadata_location=table.metadata_location)

    def _refuse(self, record: FollowerTable, error: MirrorPumpError) -> None:
        """Records why a table does not follow, unless that may be over in a moment. Raises FollowerError if nothing
        answers."""
        if isinstance(error, FollowerAway):
            self._fail(error)
            return
        self._catalog.answers()
        self._record([replace(record, error=one_line_of(with_remedy(error)))])

    def _fail(self, error: FollowerAway) -> None:
        """Has the round begun again soon. Raises FollowerError if nothing answers."""
        self._catalog.answers()
        self._failure = error

    @property
    def _is_patient(self) -> bool:
        """Whether tables still wait for one for which the catalog fails, to move together."""
        return self._follower.behind_seconds < _TOGETHER

    def _record(self, tables: Sequence[FollowerTable]) -> None:
        store_tables(self._connection, self._follower, tables)
        self._records |= {table.registration: table for table in tables}

    def _note_frontier(self, frontier: Lsn, *, examine: bool) -> None:
        for namespace in sorted({record.identifier[:-1] for record in self._records.values()}):
            try:
                self._catalog.set_namespace_property(namespace, FRONTIER, format_lsn(frontier))
            except FollowerError as error:
                if isinstance(error, FollowerAway) and self._is_patient:
                    raise
                # The role may move tables, and not change namespaces. What a namespace says stays true.
                log = get_logger("followers")
                tell = log.warning if examine else log.debug
                tell("a follower's namespace does not say its frontier", error=one_line_of(with_remedy(error)))


def _can_follow(state: PublishedState) -> bool:
    return state.is_readable and state.metadata_location is not None


def _rests(record: FollowerTable, state: PublishedState) -> bool:
    """Whether nothing is to be done, until all tables are looked at."""
    return record.error is not None or record.published_location == state.published_location


def _changed(follower: Follower, identifier: Identifier) -> FollowerError:
    name = ".".join(identifier)
    return FollowerError(
        f"follower {follower.name}: another program has committed to {name} there; the mirror does not overwrite that,"
        " and leaves the table as it is",
        f"take over what is needed of it, and drop {name} there, without its files: it is registered again by itself",
    )


def _foreign(follower: Follower, identifier: Identifier) -> FollowerError:
    return FollowerError(
        f"follower {follower.name}: there is a table {'.'.join(identifier)} already, which is not this mirror's, or has"
        " no files any more",
        f"rename or drop it there; or `mirror-pump follow remove {shlex.quote(follower.name)}`, and add it again with"
        " another --namespace or --table",
    )


def _same_name(
    follower: Follower, identifier: Identifier, state: PublishedState, other: PublishedState
) -> FollowerError:
    shared = ".".join(identifier)
    message = f"follower {follower.name}: {state.lake_name} is left out: {other.lake_name} is {shared} there already"
    first, second = ((each.lake_name.schema.lower(), each.lake_name.name.lower()) for each in (state, other))
    if follower.kind.folds_names and first == second:
        return FollowerError(message, "names there are in lower case: rename or unregister one of the two")
    return FollowerError(
        message,
        f"`mirror-pump follow remove {shlex.quote(follower.name)}`, and add it again with a --namespace or --table in"
        " which both {schema} and {table} are",
    )
