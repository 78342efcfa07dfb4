"""Chunks of copies that wait for a publish."""

from __future__ import annotations

import math

from mirror_pump.pipeline.operations.add_chunks import CopiedChunk
from mirror_pump.pipeline.session.batch_landing import PendingChunks
from tests.unit.pipeline.operations_support import TABLE

CHUNK = CopiedChunk(3, 1, 10, ())


def test_chunks_wait_for_others_that_follow_and_the_last_one_waits_for_none() -> None:
    chunks = PendingChunks()
    assert chunks.due_in == math.inf
    chunks.add(TABLE, CHUNK, others_follow=True)
    assert chunks.due_in == 0.0, "none was published before"
    (request,) = chunks.take_with(())
    assert request.table is TABLE
    assert chunks.due_in == math.inf
    chunks.add(TABLE, CHUNK, others_follow=True)
    assert chunks.due_in < math.inf
    chunks.add(TABLE, CHUNK, others_follow=False)
    assert chunks.due_in == 0.0
