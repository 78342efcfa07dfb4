"""Task of a copy that replaces only rows that differ: it copies the rows of a chunk that have certain keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mirror_pump.engine.comparison.live_rows import KeySet
from mirror_pump.engine.ingest.chunk_copy import ChunkResult, ChunkTask, attempted, write_chunk
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys


@dataclass(frozen=True)
class KeyedChunkTask:
    """A chunk of the heap of which to copy the rows with these keys."""

    chunk: ChunkTask
    packing: KeyPacking
    keys: PackedKeys


def copy_keyed_rows(task: KeyedChunkTask) -> ChunkResult:
    """Writes the rows. The files become part of the lake only when a publish commits them."""
    chosen_keys = KeySet(task.keys)
    table = task.chunk.table
    key_places = [place for place, column in enumerate(table.columns) if column.name in table.key]

    def chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = task.packing.pack([batch.column(place) for place in key_places])
        return batch.take(pa.array(np.flatnonzero(chosen_keys.among(keys))))

    return attempted(task.chunk, lambda raw_text: write_chunk(task.chunk, raw_text, chosen))
