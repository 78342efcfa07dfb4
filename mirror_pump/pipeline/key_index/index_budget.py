"""Which tables get a key index when memory does not suffice for all: those with the most deletes for each byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import MirroredTable, TableId

_HALF_LIFE = 120.0
"""Seconds after which deletes count half."""
_WORD = 8
"""Bytes."""
_SPARE = 1.25
"""Of what live rows take: entries of keys that are gone, and room to grow in."""
_LEAST = 1 << 20
_ADVANTAGE = 2.0
"""How much more an index has to help than the one whose memory it takes: else two tables would take turns."""


@dataclass(frozen=True)
class Candidate:
    """A live table that is deleted from."""

    table: MirroredTable
    deletes: float = 0.0
    """Lately, older ones counting less."""
    at: float = 0.0
    """time.monotonic() of the count, seconds."""
    nbytes: int = _LEAST
    """What its index would take."""

    def after(self, deletes: int, lake: LakeTable, packing: KeyPacking, now: float) -> Candidate:
        """With a commit's deletes counted in; `lake` is the table after it."""
        rows = max(lake.live_rows, 0)
        return replace(
            self,
            deletes=self.benefit(now) + deletes,
            at=now,
            nbytes=_LEAST + int(rows * _WORD * (packing.words + 1) * _SPARE),
        )

    def benefit(self, now: float) -> float:
        """Deletes that count at this time."""
        return self.deletes * math.exp2((self.at - now) / _HALF_LIFE)

    def packing_of(self, secret: bytes) -> KeyPacking:
        """The table's packing; only tables that have one become candidates."""
        packing = KeyPacking.of(LakeSchema.of_table(self.table), secret)
        assert packing is not None
        return packing


def choose(
    candidates: Mapping[TableId, Candidate], taken: Mapping[TableId, int], budget: int, now: float
) -> frozenset[TableId]:
    """The tables to have an index. `taken`: bytes of the indexes that there are; they keep their places unless others
    help twice as much."""
    taken = {table_id: max(size, _LEAST) for table_id, size in taken.items()}

    def worth(table_id: TableId) -> float:
        candidate = candidates.get(table_id)
        if candidate is None:
            return 0.0
        density = candidate.benefit(now) / max(taken.get(table_id, 0), candidate.nbytes)
        return density * (_ADVANTAGE if table_id in taken else 1.0)

    chosen: set[TableId] = set()
    left = budget
    for table_id in sorted(candidates.keys() | taken.keys(), key=lambda one: (-worth(one), one)):
        size = taken[table_id] if table_id in taken else candidates[table_id].nbytes
        if size <= left:
            chosen.add(table_id)
            left -= size
    return frozenset(chosen)
