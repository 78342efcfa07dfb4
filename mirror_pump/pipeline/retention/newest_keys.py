"""The newest tier key of each table's heap, looked up only when it may have become another one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.model import TableId, Tier
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Attached

_LONGEST_TRUST = 60.0
"""Seconds for which a key is trusted of partitions that seem not to have been written to: rows may be gone, and the
server may not count."""
_REST = 50.0
"""Times what a look-up took, until the next: a primary key that does not begin with the tier key makes it read the
partition that everybody writes to."""


@dataclass(frozen=True)
class _Known:
    newest: int | None
    written: tuple[tuple[int, int], ...]
    looked_at: float
    """time.monotonic(), seconds."""
    took: float
    """Seconds."""


class NewestKeys:
    """As one thread knows them."""

    def __init__(self) -> None:
        self._known: dict[TableId, _Known] = {}

    def forget(self) -> None:
        """Have them looked up; by any thread."""
        self._known.clear()

    def of(self, connection: PgConnection, table_id: TableId, tier: Tier, attached: Sequence[Attached]) -> int | None:
        """The largest tier key in the heap; None if it holds no row. The connection has no transaction open."""
        known, now = self._known.get(table_id), time.monotonic()
        if known is not None and now < known.looked_at + known.took * _REST:
            return known.newest
        written = source.written(connection, attached)
        if known is not None and written == known.written and now < known.looked_at + _LONGEST_TRUST:
            return known.newest
        newest = source.newest_key(connection, tier, attached)
        done = time.monotonic()
        self._known[table_id] = _Known(newest, written, done, done - now)
        return newest
