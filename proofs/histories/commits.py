"""Notes the order of commits as PostgreSQL's WAL has it, by a slot and a decoder that are PostgreSQL's own."""

from __future__ import annotations

import threading
from contextlib import closing, suppress

import psycopg

from proofs.histories.recorder import Recorder

_MADE = (
    "CREATE PUBLICATION commit_order FOR TABLE a, b",
    "SELECT pg_create_logical_replication_slot('commit_order', 'pgoutput')",
)
_COMMITS = """
SELECT xid::text::bigint, ('x' || encode(substr(data, 3, 8), 'hex'))::bit(64)::bigint,
       ('x' || encode(substr(data, 11, 8), 'hex'))::bit(64)::bigint
  FROM pg_logical_slot_peek_binary_changes('commit_order', NULL, NULL,
                                           'proto_version', '1', 'publication_names', 'commit_order')
 WHERE get_byte(data, 0) = ascii('C')
"""
"""A Commit message has, behind its kind and a byte of flags, where the commit record begins and ends."""


class CommitOrder:
    """The slot. Each transaction of the writers changes one of its tables."""

    def __init__(self, dsn: str, recorder: Recorder) -> None:
        self._dsn = dsn
        self._recorder = recorder
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            for statement in _MADE:
                connection.execute(statement.encode())

    def work(self, stop: threading.Event) -> None:
        """Notes commits until it is stopped. After a crash of the server some come again."""
        while not stop.wait(2):
            with suppress(psycopg.Error):
                self.fetch()

    def fetch(self) -> None:
        """Notes the commits since the last time; the slot moves only then."""
        with closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
            commits = connection.execute(_COMMITS).fetchall()
            if commits:
                self._recorder.note("WAL", "info", f="commits", value=commits)
                text = f"{commits[-1][2] >> 32:X}/{commits[-1][2] & 0xFFFFFFFF:X}"
                connection.execute("SELECT pg_replication_slot_advance('commit_order', %s)", (text,))
