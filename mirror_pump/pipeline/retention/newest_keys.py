"""The newest tier key of each table's heap, looked up only when it may have changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.model import TableId, Tier
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Attached

_LONGEST_TRUST = 60.0
"""Seconds for which a key is trusted while its partitions seem not to have been written to. Rows may have been deleted,
and the server may not count writes."""
_REST = 50.0
"""Minimum pause between look-ups, as a multiple of the last look-up's duration. If the primary key does not begin with
the tier key, a look-up reads the whole partition that receives the current writes."""


@dataclass(frozen=True)
class _CachedKey:
    newest: int | None
    written: tuple[tuple[int, int], ...]
    looked_at: float
    """time.monotonic(), in seconds."""
    took: float
    """Duration of the look-up in seconds."""


class NewestKeys:
    """The newest keys, cached by one thread."""

    def __init__(self) -> None:
        self._cached_keys: dict[TableId, _CachedKey] = {}

    def forget(self) -> None:
        """Discard all cached keys. Any thread may call it."""
        self._cached_keys.clear()

    def of(self, connection: PgConnection, table_id: TableId, tier: Tier, attached: Sequence[Attached]) -> int | None:
        """Returns the largest tier key in the heap, or None if the heap holds no row. The connection must have no open
        transaction."""
        cached_key, now = self._cached_keys.get(table_id), time.monotonic()
        if cached_key is not None and now < cached_key.looked_at + cached_key.took * _REST:
            return cached_key.newest
        written = source.written(connection, attached)
        if cached_key is not None and written == cached_key.written and now < cached_key.looked_at + _LONGEST_TRUST:
            return cached_key.newest
        newest = source.newest_key(connection, tier, attached)
        done = time.monotonic()
        self._cached_keys[table_id] = _CachedKey(newest, written, done, done - now)
        return newest
