"""Values of a slot at chosen moments, for computations of rates and times left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mirror_pump.model import Lsn
from mirror_pump.source.stream.wal_room import WalRoom

BEGIN = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


def wal_room(
    seconds: float = 0.0, *, safe: int | None = None, retained: int | None = 0, unconfirmed: int = 0, wal: int = 0
) -> WalRoom:
    """A slot that long after BEGIN, when the server's last checkpoint began at 0/0."""
    return WalRoom(
        at=BEGIN + timedelta(seconds=seconds),
        wal_position=Lsn(wal),
        safe_wal_bytes=safe,
        retained_bytes=retained,
        unconfirmed_bytes=unconfirmed,
        active_pid=None,
        checkpoint_position=Lsn(0),
        checkpoint_at=BEGIN,
    )
