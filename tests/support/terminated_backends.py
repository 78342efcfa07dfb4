"""Ends the pump's own sessions by pg_terminate_backend, one after the other, at random."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mirror_pump.testing.database import Database
from tests.support.pipeline import in_thread

_SESSIONS = """
SELECT pid, CASE WHEN backend_type = 'walsender' THEN 'walsender' ELSE application_name END
  FROM pg_stat_activity
 WHERE datname = current_database() AND (application_name LIKE 'mirror-pump%%' OR backend_type = 'walsender')
   AND pid <> pg_backend_pid() AND application_name <> ALL (%s)
 ORDER BY pid
"""


@contextmanager
def terminating(
    database: Database, seed: int, shortest: float, longest: float, spared: tuple[str, ...] = ()
) -> Iterator[Counter[str]]:
    """Ends one of the sessions after each pause of a random length, in seconds, for the time of the block. Yields how
    many it has ended so far, by application name. `spared`: application names that it leaves alone."""
    ended: Counter[str] = Counter()

    def work(stop: threading.Event) -> None:
        chance = random.Random(seed)
        with database.connect() as connection:
            while not stop.wait(chance.uniform(shortest, longest)):
                sessions = connection.execute(_SESSIONS, (list(spared),)).fetchall()
                # Kinds of sessions of which there are few get their share.
                kinds = sorted({name for _, name in sessions})
                if not kinds:
                    continue
                kind = chance.choice(kinds)
                pid = chance.choice([pid for pid, name in sessions if name == kind])
                if connection.execute("SELECT pg_terminate_backend(%s)", (pid,)).fetchone() == (True,):
                    ended[kind] += 1

    with in_thread(work, "terminator"):
        yield ended
