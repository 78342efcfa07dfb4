"""Whether synchronous_standby_names takes the mirror's walsender for a standby.

It counts for the moment of an acknowledgement only (`ReplicationStream.send_status`), so that no commit waits for it
that another standby has. Our own sessions never wait for one (`synchronous_commit` in mirror_pump/source/connect.py).
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass

from mirror_pump.source.connect import STREAM, PgConnection
from mirror_pump.source.server import how_to_set, read_server
from sql import queries

_SQL = queries("locks")

_COUNTED = re.compile(r"\s*(?:FIRST\s+|ANY\s+)?\d+\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


@dataclass(frozen=True)
class SynchronousCommits:
    """synchronous_standby_names takes the mirror's walsender for a standby."""

    setting: str
    waiting: int
    """Sessions whose commit waits for a standby at the moment."""
    how_to_set: str
    """What to do so that the setting names a standby."""

    @property
    def message(self) -> str:
        """What that leads to."""
        return (
            f"synchronous_standby_names is '{self.setting}', which takes the mirror's walsender {STREAM} for a standby:"
            " commits may return once the mirror has published them, before a standby has them; and while too few"
            " standbys are connected, nothing but a publish lets them return"
        )

    @property
    def remedy(self) -> str:
        """What to do."""
        return (
            f"name the standbys instead: {self.how_to_set}, with the application_name of each standby"
            " (pg_stat_replication)"
        )


def standby_names(setting: str) -> Set[str]:
    """The names in a synchronous_standby_names, in lower case: the server does not tell letters' cases apart."""
    counted = _COUNTED.fullmatch(setting)
    names = _NAME.findall(counted[1] if counted else setting)
    return {(quoted.replace('""', '"') or name).lower() for quoted, name in names}


def synchronous_commits(connection: PgConnection) -> SynchronousCommits | None:
    """What `synchronous_standby_names` means for commits; None if it leaves the mirror's walsender out. Raises
    psycopg.Error, SourceError."""
    ((setting, waiting),) = connection.execute(_SQL["synchronous"]).fetchall()
    if standby_names(setting) & {"*", STREAM}:
        how = how_to_set(read_server(connection), "synchronous_standby_names", "'FIRST 1 (\"STANDBY\")'")
        return SynchronousCommits(setting, waiting, how)
    return None
