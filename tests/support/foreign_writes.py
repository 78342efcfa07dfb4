"""What other engines, or people, do to lake tables of a mirror."""

from __future__ import annotations

from typing import LiteralString

from mirror_pump.testing.database import Database


def without_triggers(database: Database, *statements: LiteralString) -> None:
    """Runs statements on the catalog that its triggers refuse, as a superuser can, or a restore."""
    database.execute("SET session_replication_role = replica", *statements, "RESET session_replication_role")
