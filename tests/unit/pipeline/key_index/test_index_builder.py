"""What the index builder reads from files of another engine, and what the index makes of it."""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.lake_reads.index_keys import FileKeys
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.row_delta import BackdatedFile, LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile, write_data_file
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, files_of, place_of, positions_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.flow.backlog import Backlog
from mirror_pump.pipeline.flow.events import Event, IndexRead
from mirror_pump.pipeline.key_index.index_builder import BuiltIndex, IndexBuilder, IndexJob, SucceededFiles
from mirror_pump.pipeline.key_index.table_index import IndexPhase, TableIndex
from mirror_pump.testing.tasks import ThreadTaskRunner

STORAGE = StorageOptions(fsync=False)
SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
PACKING = KeyPacking((ColumnType(Kind.LONG),), b"secret")


def data(location: str, *ids: int) -> WrittenFile:
    return write_data_file(pa.table([list(ids)], schema=SCHEMA.arrow), SCHEMA, location, STORAGE)


def test_of_two_rewrites_the_younger_rows_count(warehouse: str) -> None:
    """Key 1 was updated while the first rewrite ran: its file has the former row, which a pending delete hides, and it
    comes first in the manifest list."""
    location = f"{warehouse}/t"
    old, new = data(location, 1, 2), data(location, 3, 1)
    table = LakeTable.create(SCHEMA, location, STORAGE, {}, 0).table
    table = table.stage(RowDelta((SegmentFiles((new,), ()),)), 0).table
    table = table.stage(RowDelta((), backdated=(BackdatedFile(old, 1),)), 0).table
    assert [file.path for file in table.live_data_files()] == [old.path, new.path]
    tracked = TableIndex(Lsn(0), PACKING, 0, IndexPhase.FOLLOWING, KeyIndex(PACKING.words))
    keys = PackedKeys(np.array([1, 2, 3]), None)
    # Keys 1 and 3 were in a file that the second rewrite replaced, 2 in one that the first did.
    numbers = np.array([tracked.numbers.number(path) for path in ("f2", "f1", "f2")])
    tracked.index.put(keys, place_of(numbers, np.array([0, 1, 1])))
    runner = ThreadTaskRunner(1)
    try:
        job = IndexJob(TableId(1), 0, table, PACKING, frozenset({"f1", "f2"}), 1 << 20)
        followed = IndexBuilder(runner, SimpleQueue())._follow(job, frozenset({"f1", "f2"}))
    finally:
        runner.close()
    assert tracked.followed(followed)
    places = tracked.index.find(keys)
    assert NOWHERE not in places
    assert [tracked.numbers.path(number) for number in files_of(places)] == [new.path, old.path, new.path]


class EndingBacklog(Backlog):
    """Comes first at two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    @property
    def comes_first(self) -> bool:
        self.looks += 1
        return self.looks < 3


def test_an_index_is_built_after_a_batch_of_many_tables(warehouse: str) -> None:
    """Such a batch requests hundreds of indexes, and the next one would wait for the cores."""
    location = f"{warehouse}/t"
    table = LakeTable.create(SCHEMA, location, STORAGE, {}, 0).table
    table = table.stage(RowDelta((SegmentFiles((data(location, 1),), ()),)), 0).table
    backlog, inbox, runner = EndingBacklog(), SimpleQueue[Event](), ThreadTaskRunner(1)
    try:
        with IndexBuilder(runner, inbox, backlog=backlog) as builder:
            builder.submit(IndexJob(TableId(1), 0, table, PACKING, None, 1 << 20))
            answer = inbox.get(timeout=60)
    finally:
        runner.close()
    assert isinstance(answer, IndexRead)
    assert isinstance(answer.result, BuiltIndex)
    assert backlog.looks == 3


def test_a_merge_moves_no_key_of_a_source_that_another_engine_replaced(warehouse: str) -> None:
    """The merged file has its rows as well, hidden: what the other engine wrote has the keys."""
    other = data(f"{warehouse}/t", 1, 2)
    tracked = TableIndex(Lsn(0), PACKING, 0, IndexPhase.FOLLOWING, KeyIndex(PACKING.words))
    keys = PackedKeys(np.array([1, 2, 3]), None)
    replaced, there = (tracked.numbers.number(path) for path in ("replaced", "there"))
    tracked.index.put(keys, place_of(np.array([replaced, replaced, there]), np.array([0, 1, 0])))
    merged = MergedFile(
        data(f"{warehouse}/t", 1, 2, 3),
        4,
        ("replaced", "there"),
        np.array([0, 0, 1], np.int32),
        np.array([0, 1, 0]),
        keys,
    )
    assert merged.of_sources({"replaced", "there"}) is merged
    tracked.merged(merged.of_sources({"there"}))
    read = FileKeys(other.path, PackedKeys(np.array([1, 2]), None), None)
    assert tracked.followed(SucceededFiles((read,), {other.path: ()}, ("replaced",)))
    places = tracked.index.find(keys)
    assert [tracked.numbers.path(number) for number in files_of(places)] == [other.path, other.path, merged.path]
    assert positions_of(places).tolist() == [0, 1, 2]
