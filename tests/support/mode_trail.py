"""What happened in tests/support/mode_world.py, and what the catalog says about it, to be read after a failure."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import LiteralString

import psycopg

from mirror_pump.testing.database import Database

_KEY = re.compile(r"\((\d+), (\d+), ")
"""Tier key and ID of a row in the message of assert_same."""

_CATALOG: LiteralString = """
SELECT t.table_name, c.table_id, c.tier_key_hi, c.retention_line, c.lake_snapshot_id, c.replicated_lsn, m.state,
       m.start_lsn, m.generation, m.error
  FROM modak.cutline c JOIN modak.tables t USING (table_id) JOIN modak.mirror_tables m USING (table_id) ORDER BY 1;
SELECT partition_id, table_id, state, tier_key_hi, advanced_xid, proven_at, reason, attempts, updated_at
  FROM modak.partitions WHERE state <> 'dropped' ORDER BY 2, tier_key_hi;
SELECT table_id, count(*), count(folded_sequence), min(version), max(version) FROM modak.delta GROUP BY 1;
SELECT table_id, partition_id, count(*) FROM modak.mirror_captured GROUP BY 1, 2;
SELECT * FROM modak.read_pins;
SELECT updated_at, table_id, op_kind, phase, lake_snapshot_id, left(details::text, 400)
  FROM modak.op_log ORDER BY updated_at DESC LIMIT 60
"""
_OF_KEY: LiteralString = """
SELECT m.* FROM audit.model_changes m WHERE (at, id) = (%(at)s, %(id)s) ORDER BY seq;
SELECT * FROM modak.delta
 WHERE (payload ->> 'at', payload ->> 'id') = (%(at)s::text, %(id)s::text)
    OR pk LIKE '%%' || %(id)s || '%%' AND tier_key = %(at)s;
SELECT * FROM modak.mirror_captured WHERE pk LIKE '%%' || %(id)s || '%%' AND tier_key = %(at)s;
SELECT table_id, label, gone, times
  FROM audit.coming c
 WHERE rows @> jsonb_build_array(jsonb_build_object('at', %(at)s::bigint, 'id', %(id)s::bigint))
"""
"""All that is known of the row with one key, whichever table has it."""


class ModeTrail:
    """What happened, the newest last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._began = time.monotonic()
        self._lines: deque[str] = deque(maxlen=1500)

    def note(self, what: str) -> None:
        """Something begins, or has been found. Any thread may say so."""
        self._lines.append(f"{time.monotonic() - self._began:8.3f} {time.strftime('%H:%M:%S')} {what}")

    def show(self, error: BaseException) -> None:
        """Prints everything to stderr, with what the database knows of the rows that the error names."""
        keys = list(dict.fromkeys(_KEY.findall(str(error))))[:5]
        print(f"\nafter {type(error).__name__}: {error}", *self._lines, sep="\n", file=sys.stderr)
        self._print(_CATALOG, {})
        for at, id_ in keys:
            self._print(_OF_KEY, {"at": int(at), "id": int(id_)})
        sys.stderr.flush()

    def _print(self, queries: LiteralString, parameters: dict[str, int]) -> None:
        for query in queries.split(";"):
            found: Sequence[object]
            try:
                with self._database.session() as connection:
                    found = connection.execute(query, parameters).fetchall()
            except psycopg.Error as error:
                # The failure itself is what counts.
                found = [error]
            print(f"-- {query.strip()} {parameters or ''}", *found, sep="\n", file=sys.stderr)
