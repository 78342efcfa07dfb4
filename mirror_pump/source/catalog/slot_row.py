"""The lock of a mirror, the row of its slot. Programs that publish, or change what publishes need, lock it first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from mirror_pump.model import Lsn
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("publish")
_SET_TIMEOUT = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"


@dataclass(frozen=True)
class SlotRow:
    """A row of the query `lock_slot`."""

    leader_epoch: int
    applied_lsn: Lsn
    publish_id: int | None
    """The random number that the last publish wrote. None before the first one."""
    streams: bool
    """Whether the mirror has a stream."""
    timeline: int
    """The timeline of the server."""
    accepted_server: bool
    """Whether the mirror was published on this server. Otherwise it took that one's place, and is looked at first."""


def lock_slot(connection: psycopg.Connection[Any], slot: str, stopped_seconds: int | None = None) -> SlotRow | None:
    """Keeps publishes and other landings out until the end of the caller's transaction. Returns None if the slot is not
    in the catalog. If this process is stopped meanwhile, the server ends its session after `stopped_seconds`."""
    if stopped_seconds is not None:
        connection.execute(_SET_TIMEOUT, (f"{stopped_seconds}s",))
    return fetch_row(connection, SlotRow, _SQL["lock_slot"], {"slot": slot})
