"""Proves that the lake holds a heap partition: its rows at the published snapshot, with corrections, equal the heap's.
No partition is dropped without this proof.

The heap, modak.delta, the cut-line and the published snapshot are read in one REPEATABLE READ snapshot of the database.
A fold moves corrections into the lake in the transaction that changes the published snapshot. The partition's triggers
write corrections in the transactions that change the heap. So at any snapshot `heap = (lake at the published snapshot,
without the corrected keys) + corrections`, or the proof fails. Rows whose keys are corrected are compared in the
database. All other rows are compared by count and by sums of 128-bit hashes over full rows, in tasks, with the parsers
that copies use.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from decoders.text import parse_rows
from mirror_pump.engine.comparison.differing_keys import DifferingKeys, unequal_buckets
from mirror_pump.engine.comparison.digests import ComparisonParameters, DigestedRows
from mirror_pump.engine.comparison.row_hashes import BUCKETS, HashSecret, Words
from mirror_pump.engine.comparison.tier_files import tier_ranges
from mirror_pump.engine.ingest.chunk_copy import ChunkTask
from mirror_pump.errors import LakeError, SourceError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.sorted_numbers import Ints, found_among
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, SnapshotId
from mirror_pump.pipeline.flow.digests import Digests
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.pins import PinnedSet, PinRelation, PinSubject, of_snapshots
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import PgConnection, exported_snapshot, portable_dsn, source_errors
from mirror_pump.source.heap.block_reader import plan_chunks
from mirror_pump.source.retention.partitions import Partition, bounded
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("retention")

_IN_FLIGHT = 2
"""Concurrent tasks of a proof. The number is small because the stream's segments need the machine more urgently."""
_SHOWN = 10
"""Differing keys that a failed proof names, at most."""
_LOOKED_AT = 8
"""Buckets whose rows are read again to find the differing keys, at most."""
MOST_ROWS = 1 << 24
"""Rows of a truncated partition that are looked up in the lake at once. Each takes some 20 bytes of memory."""


@dataclass(frozen=True)
class Proof:
    """The outcome for one partition."""

    rows: int
    """Rows in the heap."""
    snapshot_id: int
    """The published snapshot."""
    watched_as: str
    """modak.watch_mark() of the partition at the time of the comparison."""
    differing: tuple[str, ...]
    """Some of the keys whose rows differ, and how they differ. Empty if the lake holds the partition."""


@dataclass(frozen=True)
class ComparedState:
    """What a comparison reads: a snapshot of the database, and the published snapshot as of it, which is pinned."""

    published: PublishedState
    exported: str
    """The name of the exported snapshot of the database."""

    @classmethod
    def of(cls, reader: PgConnection, table: MirroredTable) -> ComparedState:
        """What the transaction of `reader`, which has one snapshot, sees of the table. Raises TableError."""
        states = published_states(reader, table_ids=[table.table_id])
        if not states:
            raise _not_registered(table)
        return cls(states[0], exported_snapshot(reader))


@dataclass(frozen=True)
class _ComparedCorrection:
    """A row of the query `corrections`."""

    pk: str
    """The canonical key."""
    key: list[str]
    """The texts of the key columns in attribute order."""
    difference: str | None
    """A key of _WORDS; None if the heap has the corrected row."""


class Prover:
    """Compares partitions with the lake, one at a time."""

    def __init__(
        self,
        connect: Callable[[], PgConnection],
        tasks: Tasks,
        storage: StorageOptions,
        dsn: str,
        limits: InternalLimits,
    ) -> None:
        self._connect = connect
        self._tasks = tasks
        self._storage = storage
        self._dsn = dsn
        self._limits = limits

    def prove(self, table: MirroredTable, partition: Partition) -> Proof:
        """Compares the partition in one snapshot. Raises LakeError, SourceError, TableError (the partition was altered
        meanwhile, or the table was unregistered), TaskFailed and ThreadStopped. After any of these nothing is proven,
        and the comparison is tried again."""
        assert table.tier is not None
        with self._connect() as reader, source_errors(f"comparing {partition.partition_id} with the lake"):
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            bounded(reader)
            (watched_as,) = reader.execute(_SQL["watched"], {"relation_id": partition.relation_id}).fetchone() or (
                None,
            )
            state = ComparedState.of(reader, table)
            if watched_as is None:
                raise TableError(f"{partition.partition_id} was detached, or its trigger zz_modak_row switched off")
            published = state.published
            with self._connect() as connection:
                seconds = self._limits.proof_pin_seconds
                pins = PinnedSet(lambda: nullcontext(connection), PinRelation.ROWS_OF_TABLES, seconds)
                # In a transaction that other sessions see. The end of the registration may keep the pin out.
                if not pins.take(of_snapshots([PinSubject(table.table_id, published.snapshot_id, published.cut)])):
                    raise _not_registered(table)
                try:
                    rows, differing = self.compare(table, partition, reader, state, partial(_keep, pins))
                finally:
                    if not connection.broken:
                        pins.drop()
            return Proof(rows, published.snapshot_id, watched_as, tuple(differing[:_SHOWN]))

    def compare(
        self,
        table: MirroredTable,
        partition: Partition,
        reader: PgConnection,
        state: ComparedState,
        renew: Callable[[], None],
        ignored: Collection[str] = (),
    ) -> tuple[int, list[str]]:
        """Compares a relation, which need not be attached, with the lake's rows between its bounds.

        Returns the number of rows in the heap and the differences. `renew` is called often enough to renew a pin of the
        published snapshot. `ignored`: canonical keys of corrections that may differ.
        """
        lake = published_table(state.published.published_location, state.published.snapshot_id, self._storage)
        packing = KeyPacking.of(lake.schema, secrets.token_bytes(32))
        assert packing is not None
        differing, left_out = self._corrections(table, partition, reader, packing, ignored)
        comparing = ComparisonParameters(table.columns, table.key, packing, HashSecret.draw(), left_out)
        task_bytes = self._limits.proof_task_bytes
        # All rows of the partition, on either side of the cut-line.
        whole, dsn = replace(table, tier=None, row_filter=""), portable_dsn(self._dsn, reader)
        chunks = plan_chunks(reader, _relation(partition), task_bytes)
        heap = [ChunkTask(dsn, whole, chunk, self._storage, state.exported) for chunk in chunks]
        files = list(tier_ranges(table.tier_column, lake, partition.lo, partition.hi, self._storage, task_bytes))
        digests = Digests(comparing, heap, files, self._tasks, _IN_FLIGHT, renew)
        rows, differences = compare_sides(digests, truncated=partition.truncated)
        # Each correction counts as one row, even if one of the sides lacks it.
        return rows + len(left_out), differing + differences

    def _corrections(
        self,
        table: MirroredTable,
        partition: Partition,
        reader: PgConnection,
        packing: KeyPacking,
        ignored: Collection[str],
    ) -> tuple[list[str], PackedKeys]:
        """Returns the differences between the corrections and the heap, and the packed keys of all corrections."""
        where: dict[str, Any] = {
            "table_id": table.table_id,
            "relation_id": partition.relation_id,
            "lo": partition.lo,
            "hi": partition.hi,
        }
        corrections = fetch_rows(reader, _ComparedCorrection, _SQL["corrections"], where)
        differing = [
            f"{', '.join(correction.key)}: {_WORDS[correction.difference]}"
            for correction in corrections
            if correction.difference is not None
            and correction.pk not in ignored
            and not (partition.truncated and correction.difference == "missing")
        ]
        # The catalog lists both the key and the columns in attribute order.
        types = {column.name: column.type for column in table.key_columns}
        try:
            keys, _ = parse_rows([tuple(correction.key) for correction in corrections], types)
        except ValueError as error:
            raise TableError(f"the mirror has not followed a change of the key of {table.name} yet: {error}") from error
        return differing, packing.pack(list(keys.values()))


def published_table(location: str, snapshot_id: SnapshotId, storage: StorageOptions) -> LakeTable:
    """The lake table at its published snapshot, which has a metadata file of its own. Raises LakeError."""
    lake = LakeTable.load(location, storage)
    if lake.snapshot_id != snapshot_id:
        raise LakeError(f"{location} is not the metadata of snapshot {snapshot_id}", "report this: it is a bug")
    return lake


def _keep(pins: PinnedSet) -> None:
    if not pins.keep():
        raise SourceError("the pin on the compared snapshot has expired", "the comparison is tried again")


def _not_registered(table: MirroredTable) -> TableError:
    return TableError(f"{table.name} is not registered any more")


def compare_sides(digests: Digests, *, truncated: bool, most_rows: int = MOST_ROWS) -> tuple[int, list[str]]:
    """Returns the number of rows in the heap, and some of the keys whose rows differ. The former rows of a truncated
    partition, or of one in whose place it was made, are in the lake alone. So only the rows in the heap are looked up
    in the lake, `most_rows` at a time: each side is read once, or as often as that takes."""
    if truncated:
        rows, lacking = _lacking_buckets(digests, most_rows)
        group = frozenset(lacking[:_LOOKED_AT])
        given = digests.heap(group).rows if group else None
        differing = [] if given is None else _differing(given, digests.lake(group, given.keys).rows)
        return rows, differing or [_FOUND_EQUAL] * (len(lacking) > _LOOKED_AT)
    in_heap, in_lake = digests.both()
    unequal = sorted(unequal_buckets(in_heap, in_lake))
    if not unequal:
        return in_heap.count, []
    heap, lake = digests.both(frozenset(unequal[:_LOOKED_AT]))
    return in_heap.count, _differing(heap.rows, lake.rows) or [_FOUND_EQUAL]


def _lacking_buckets(digests: Digests, most_rows: int) -> tuple[int, list[int]]:
    """The number of rows in the heap, and the buckets of which the lake does not have all of them.

    Of the lake's rows those count whose hash has a first word that a row of the heap has. Both sides are equal if
    these have the same sums as the heap's rows. A row of another hash with such a word makes them unequal.
    """
    rows, lacking, begin = 0, list[int](), 0
    while begin < BUCKETS:
        heap = _heap_hashes(digests, begin, most_rows)
        rows = rows or int(heap.sums[:, 0].sum())
        sums = np.zeros_like(heap.sums)
        for part in digests.hashed_lake(begin) if len(heap.first_words) else ():
            assert part.hashes is not None
            buckets, (first, second) = part.hashes.buckets, part.hashes.words
            _, among = found_among(heap.first_words, first.view(np.int64))
            places = np.flatnonzero(among & (buckets < heap.end))
            for column, values in enumerate((np.ones(len(places), np.uint64), first[places], second[places])):
                np.add.at(sums[:, column], buckets[places], values)
        differs = (sums != heap.sums).any(axis=1)
        lacking += (np.flatnonzero(differs[begin : heap.end]) + begin).tolist()
        begin = heap.end
    return rows, lacking


@dataclass(frozen=True)
class _HeapHashes:
    """Hashes of the heap's rows in some buckets."""

    end: int
    """The bucket behind the last one."""
    sums: Words
    """Of all rows from the first of these buckets on."""
    first_words: Ints
    """Of the buckets' rows, sorted."""


def _heap_hashes(digests: Digests, begin: int, most_rows: int) -> _HeapHashes:
    """Those of as many buckets from `begin` on as have at most so many rows, or of one."""
    end, sums = BUCKETS, np.zeros((BUCKETS, 3), np.uint64)
    parts: list[tuple[npt.NDArray[np.uint16], Words]] = []
    for part in digests.hashed_heap(begin):
        assert part.hashes is not None
        sums += part.sums
        below = part.hashes.buckets < end
        parts.append((part.hashes.buckets[below], part.hashes.words[0][below]))
        while end - begin > 1 and int(sums[begin:end, 0].sum()) > most_rows:
            end -= (end - begin) // 2
            parts = [(buckets[buckets < end], words[buckets < end]) for buckets, words in parts]
    first_words = np.concatenate([np.zeros(0, np.int64), *(words.view(np.int64) for _, words in parts)])
    first_words.sort()
    return _HeapHashes(end, sums, first_words)


_FOUND_EQUAL = "rows that a second comparison found equal"
_WORDS = {"missing": "not in the heap", "extra": "not in the lake", "different": "other values"}


def _relation(partition: Partition) -> Any:
    assert partition.relation_id is not None
    return partition.relation_id


def _differing(heap: DigestedRows | None, lake: DigestedRows | None) -> list[str]:
    """Returns the keys whose rows differ between the two sides, and how they differ."""
    keys = DifferingKeys.of_rows(heap, lake)
    if keys is None:
        return []
    sides = np.where(keys.in_heap, np.where(keys.in_lake, "different", "extra"), "missing").tolist()
    rows = zip(*(column.to_pylist() for column in keys.columns), strict=True)
    return sorted(f"{', '.join(map(str, row))}: {_WORDS[side]}" for row, side in zip(rows, sides, strict=True))
