"""Chooses the tables that get a key index if there is not enough memory for all: those with the most deletes per
byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import MirroredTable, TableId

_HALF_LIFE = 120.0
"""Seconds after which a delete counts half."""
_WORD = 8
"""Bytes of a word."""
_SPARE = 1.25
"""Estimated size of an index relative to its live entries. The rest is for entries of removed keys and for growth."""
_LEAST = 1 << 20
"""Minimum estimated size of an index in bytes."""
_ADVANTAGE = 2.0
"""An index only takes the memory of another one if it helps this many times as much. Otherwise two tables would take
turns."""


@dataclass(frozen=True)
class Candidate:
    """A live table whose rows are being deleted or updated."""

    table: MirroredTable
    deletes: float = 0.0
    """Number of recent deletes, in which older ones count less."""
    at: float = 0.0
    """time.monotonic() of the last count, in seconds."""
    nbytes: int = _LEAST
    """Estimated size of its index in bytes."""

    def after(self, deletes: int, lake: LakeTable, packing: KeyPacking, now: float) -> Candidate:
        """The candidate after a commit with this many deletes. `lake` is the table after the commit."""
        rows = max(lake.live_rows, 0)
        return replace(
            self,
            deletes=self.benefit(now) + deletes,
            at=now,
            nbytes=_LEAST + int(rows * _WORD * (packing.words + 1) * _SPARE),
        )

    def benefit(self, now: float) -> float:
        """The number of recent deletes, as counted at time `now`."""
        return self.deletes * math.exp2((self.at - now) / _HALF_LIFE)

    def packing_of(self, secret: bytes) -> KeyPacking:
        """The packing of the table's keys. Only tables whose keys can be packed become candidates."""
        packing = KeyPacking.of(LakeSchema.of_table(self.table), secret)
        assert packing is not None
        return packing


def choose(
    candidates: Mapping[TableId, Candidate], taken: Mapping[TableId, int], budget: int, now: float
) -> frozenset[TableId]:
    """The tables that should have an index. `taken`: the size in bytes of each existing index. An existing index stays
    unless another one helps twice as much."""
    taken = {table_id: max(size, _LEAST) for table_id, size in taken.items()}

    def worth(table_id: TableId) -> float:
        candidate = candidates.get(table_id)
        if candidate is None:
            return 0.0
        density = candidate.benefit(now) / max(taken.get(table_id, 0), candidate.nbytes)
        return density * (_ADVANTAGE if table_id in taken else 1.0)

    chosen: set[TableId] = set()
    left = budget
    for table_id in sorted(candidates.keys() | taken.keys(), key=lambda candidate: (-worth(candidate), candidate)):
        size = taken[table_id] if table_id in taken else candidates[table_id].nbytes
        if size <= left:
            chosen.add(table_id)
            left -= size
    return frozenset(chosen)
