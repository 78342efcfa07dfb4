"""Keys of the advisory locks by which processes of a mirror find each other."""

from __future__ import annotations

import hashlib


def advisory_key(purpose: str) -> int:
    """The lock's key: 64 bits of a digest, to avoid collisions with other users of advisory locks."""
    digest = hashlib.sha256(f"mirror-pump {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def key_halves(key: int) -> dict[str, int]:
    """The key as pg_locks shows a bigint: `high` (classid) and `low` (objid), as parameters of a query."""
    unsigned = key & 0xFFFF_FFFF_FFFF_FFFF
    return {"high": unsigned >> 32, "low": unsigned & 0xFFFF_FFFF}
