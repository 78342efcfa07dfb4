"""A spilled result behaves as the task's own future, and lets go of what the task returned."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import CancelledError, Future, wait

import numpy as np
import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.ingest.segment_tasks import SegmentResult, TableResult
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.index_plan import SegmentKeys
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import TableId
from mirror_pump.pipeline.stream.receiver import SpilledResult
from mirror_pump.runtime.spill import Spill

_SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))


def segment_result(rows: int) -> SegmentResult:
    numbers = np.arange(rows)
    packed = PackedKeys(numbers, None)
    packing = KeyPacking((ColumnType(Kind.LONG),), b"secret")
    keys = SegmentKeys(_SCHEMA, pa.table({"id": numbers}), packed, packing, (packed,))
    return SegmentResult((TableResult(TableId(7), rows, SegmentFiles((), ()), None, None, keys),), 1.0, 2.0)


def test_the_result_is_the_tasks_but_on_disk() -> None:
    task: Future[SegmentResult] = Future()
    spilled = SpilledResult(task, Spill(0))
    called: list[Future[SegmentResult]] = []
    spilled.add_done_callback(called.append)
    result = segment_result(1000)
    gone = weakref.ref(result)
    task.set_result(result)
    del task, result
    gc.collect()
    assert gone() is None
    assert called == [spilled]
    found = spilled.result(0).tables[0]
    assert found.keys is not None
    assert found.keys.deleted.column("id").to_pylist() == list(range(1000))
    assert found.keys.packed.first.tolist() == found.keys.rows[0].first.tolist() == list(range(1000))
    assert found.nbytes == segment_result(1000).nbytes == 3 * 8 * 1000


def test_an_error_is_the_tasks() -> None:
    task: Future[SegmentResult] = Future()
    spilled = SpilledResult(task, Spill(0))
    task.set_exception(ValueError("planted"))
    with pytest.raises(ValueError, match="planted"):
        spilled.result(0)


@pytest.mark.parametrize("begun", [False, True])
def test_cancelling_reaches_a_task_that_has_not_begun(*, begun: bool) -> None:
    task: Future[SegmentResult] = Future()
    spilled = SpilledResult(task, Spill(0))
    if begun:
        task.set_running_or_notify_cancel()
        assert not spilled.cancel()
        task.set_result(segment_result(1))
        assert spilled.result(0).tables[0].changes == 1
        return
    assert spilled.cancel()
    assert task.cancelled()
    assert not wait([spilled], 0).not_done
    with pytest.raises(CancelledError):
        spilled.result(0)
    assert spilled.cancel()
