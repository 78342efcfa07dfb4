"""Cuts the stream into segments and batches. Protocol logic without I/O: fed with messages, it emits work.

A batch holds whole transactions; its segments are consecutive slices of the stream, cut anywhere, also inside a
transaction. A segment is emitted as soon as it is full, long before its batch closes: pgoutput sends a transaction
only once it has committed, so nothing that was emitted can be rolled back, and memory stays flat however
large a transaction is (design section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decoders.messages import Relation, parse_begin, parse_commit, parse_relation, parse_truncate
from mirror_pump.model import Lsn, MirroredTable, TableId

HEADER = 25
"""Bytes before the pgoutput message in a CopyData message: 'w' and three int64 (protocol docs, XLogData)."""

_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"
_CHANGES = frozenset(b"IUD")


@dataclass(frozen=True)
class Segment:
    """A slice of the stream and the tables whose changes in it count."""

    number: int
    """Position within its batch, from 0."""
    messages: Sequence[bytes]
    """Whole CopyData messages, headers included."""
    size: int
    """Bytes in all."""
    tables: tuple[MirroredTable, ...]


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE of one table: its rows of earlier batches and of the segments before `before` go."""

    table: MirroredTable
    before: int

    @property
    def table_id(self) -> TableId:
        return self.table.table_id


@dataclass(frozen=True)
class Failure:
    """A table that has to be set aside, and why."""

    table: MirroredTable
    error: str


@dataclass(frozen=True)
class BatchEnd:
    """The batch is complete: `segments` were emitted, and with them everything that ends at or below `end_lsn` is."""

    end_lsn: Lsn
    commit_time_us: int
    """Commit time of the last transaction, microseconds since the Unix epoch."""
    segments: int
    changes: int
    transactions: int
    truncations: tuple[Truncation, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class Limits:
    """When segments and batches close."""

    segment_bytes: int
    batch_bytes: int


@dataclass
class _Batch:
    """What the open batch has gathered."""

    segments: int = 0
    changes: int = 0
    transactions: int = 0
    size: int = 0
    commit_time_us: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.changes or self.truncations or self.failures)


class Assembler:
    """Feeds on CopyData messages in stream order; `emit` takes segments, `close()` gives the batch's end.

    `lookup(relation_id)` returns the table's present registration, None when the relation is not mirrored. It is asked
    at every Relation message: Postgres sends one before the first change after a publication or schema change, so
    a registration that came, went or was replaced is seen before the first change that it concerns.
    """

    def __init__(
        self,
        limits: Limits,
        applied: Lsn,
        lookup: Callable[[int], MirroredTable | None],
        emit: Callable[[Segment], None],
        barrier: Lsn | None = None,
    ) -> None:
        self._limits = limits
        self._lookup = lookup
        self._emit = emit
        self._barrier = barrier
        self._applied = applied
        self._active: dict[int, MirroredTable] = {}
        self._tables: tuple[MirroredTable, ...] = ()
        self._messages: list[bytes] = []
        self._size = 0
        self._changes = 0
        self._batch = _Batch()
        self._in_transaction = False
        self._skipping = False
        self._final_lsn = 0
        self.position = applied
        """Everything that ends at or below it was fed (commit ends and, between transactions, keepalives)."""

    @property
    def in_transaction(self) -> bool:
        return self._in_transaction

    @property
    def empty(self) -> bool:
        """True when closing now would give a batch without any effect."""
        return self._batch.empty and not self._changes

    @property
    def full(self) -> bool:
        """True when the batch has its bytes, or reached the barrier, and may close: between transactions only."""
        if self._in_transaction:
            return False
        if self._barrier is not None and self.position >= self._barrier:
            return not self.empty
        return self._batch.size + self._size >= self._limits.batch_bytes

    def feed(self, messages: Sequence[bytes]) -> int:
        """Take messages in order; return how many were taken.

        Fewer than given are taken when the batch became full at a commit: close it, then feed the rest.
        """
        limit = self._limits.segment_bytes
        append = self._messages.append
        taken = 0
        for message in messages:
            taken += 1
            tag = message[HEADER]
            if tag in _CHANGES:
                if not self._skipping and self._tables:
                    append(message)
                    self._size += len(message)
                    self._changes += 1
                    if self._size >= limit:
                        self._cut()
                        append = self._messages.append
                continue
            self._control(tag, message)
            append = self._messages.append
            if tag == _COMMIT and self.full:
                break
        return taken

    def idle_at(self, wal_end: Lsn) -> None:
        """A keepalive came between transactions: the server has sent everything that ends at or below `wal_end`."""
        if not self._in_transaction:
            self.position = max(self.position, wal_end)

    def refresh(self, tables: Sequence[MirroredTable]) -> None:
        """Use these descriptions of tables that are active already (a table went live: its inserts need no deletes)."""
        for table in tables:
            known = self._active.get(table.table_id)
            if known is not None and known.start_lsn == table.start_lsn and known != table:
                self._cut()
                self._set_active({**self._active, table.table_id: table})

    def drop(self, table_id: TableId) -> None:
        """Ignore the table's changes from here on, until a Relation message finds it registered again."""
        if table_id in self._active:
            self._cut()
            self._set_active({known: table for known, table in self._active.items() if known != table_id})

    def close(self) -> BatchEnd:
        """End the batch; must not be called inside a transaction."""
        if self._in_transaction:
            raise AssertionError("a batch holds whole transactions: it cannot close inside one")
        self._cut()
        batch, self._batch = self._batch, _Batch()
        return BatchEnd(
            end_lsn=self.position,
            commit_time_us=batch.commit_time_us,
            segments=batch.segments,
            changes=batch.changes,
            transactions=batch.transactions,
            truncations=tuple(batch.truncations),
            failures=tuple(batch.failures),
        )

    def _cut(self) -> None:
        """Emit what was gathered as a segment, if it holds changes of any table that counts."""
        if not self._messages:
            return
        messages, size = self._messages, self._size
        batch = self._batch
        batch.size += size
        if self._tables:
            batch.changes += self._changes
            segment = Segment(batch.segments, messages, size, self._tables)
            batch.segments += 1
            self._emit(segment)
        self._messages, self._size, self._changes = [], 0, 0

    def _control(self, tag: int, message: bytes) -> None:
        if tag == _BEGIN:
            self._final_lsn = parse_begin(bytes(message[HEADER:])).final_lsn
            self._in_transaction = True
            self._skipping = self._final_lsn < self._applied
        elif tag == _COMMIT:
            commit = parse_commit(bytes(message[HEADER:]))
            self._in_transaction = False
            self._skipping = False
            self.position = Lsn(max(self.position, commit.end_lsn))
            if not self.empty:
                self._batch.transactions += 1
                self._batch.commit_time_us = commit.commit_time_us
        elif tag == _RELATION:
            self._relation(parse_relation(bytes(message[HEADER:])))
        elif tag == _TRUNCATE and not self._skipping:
            for relation_id in parse_truncate(bytes(message[HEADER:])).relation_ids:
                table = self._active.get(relation_id)
                if table is not None:
                    self._cut()
                    self._batch.truncations.append(Truncation(table, self._batch.segments))

    def _relation(self, relation: Relation) -> None:
        table = self._lookup(relation.relation_id)
        if table is not None and self._final_lsn < table.start_lsn:
            # A change from before the present registration. Registering changes the publication, so the server will
            # send the relation again before the first change that counts.
            table = None
        known = self._active.get(relation.relation_id)
        if table is None:
            self.drop(TableId(relation.relation_id))
            return
        difference = difference_from(table, relation)
        if difference:
            self.drop(table.table_id)
            self._batch.failures.append(
                Failure(table, f"{table.name}: it was altered since it was registered: {difference}")
            )
        elif known is None or known.start_lsn != table.start_lsn:
            self._cut()
            self._set_active({**self._active, table.table_id: table})

    def _set_active(self, active: dict[int, MirroredTable]) -> None:
        self._active = active
        self._tables = tuple(active.values())


_FULL = "f"
"""pg_class.relreplident under which the whole old row is sent, whatever the key."""


def difference_from(table: MirroredTable, relation: Relation) -> str:
    """What differs between the table as registered and as the server now sends it; empty when nothing does.

    The replica identity matters as much as the columns do: an old row is sent only when columns of the identity
    change, so a key that is not the identity any more could change unnoticed.
    """
    registered = [(column.name, column.type_oid, column.type_modifier) for column in table.columns]
    sent = [(column.name, column.type_oid, column.type_modifier) for column in relation.columns]
    if registered == sent:
        identity = {column.name for column in relation.columns if column.is_key}
        # Without any identity the server refuses updates and deletes, and inserts are what they were.
        if relation.replica_identity == _FULL or not identity or identity == set(table.key):
            return ""
        return f"its replica identity is ({', '.join(sorted(identity))}), not ({', '.join(table.key)}) any more"
    names, now = {name for name, *_ in registered}, {name for name, *_ in sent}
    parts = [f"column {name} is gone" for name, *_ in registered if name not in now]
    parts += [f"column {name} is new" for name, *_ in sent if name not in names]
    parts += [f"column {item[0]} has another type" for item in sent if item[0] in names and item not in registered]
    return ", ".join(parts) or "their order changed"
