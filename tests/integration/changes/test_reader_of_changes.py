"""A reader's role reads changes, and has its own pins alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest

from mirror_pump.testing.mirror import Mirror
from sql import reader_role
from tests.support.cli import RunCommand
from tests.support.made_feeds import MadeFeed
from tests.support.readers import ReaderRole, role_of


@pytest.fixture
def reader(mirror: Mirror) -> Iterator[ReaderRole]:
    with role_of(mirror.database) as role:
        quoted = psycopg.sql.Identifier(role.name)
        with mirror.database.connect() as connection:
            connection.execute(reader_role(quoted.as_string(connection)).encode())
        yield role


def test_a_reader_reads_changes_without_writing_to_the_lake(
    mirror: Mirror, feed: MadeFeed, reader: ReaderRole, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_PUMP_DSN", reader.dsn)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    before = feed.stored()
    printed = run("changes", "orders", "--since", "0/5DC", "--json")
    assert printed.exit_code == 0, printed.output
    rows = feed.between(1500, mirror.frontier())
    assert len(printed.stdout.splitlines()) == len(rows) + 1
    counted = run("sql", "SELECT count(*) AS n FROM orders", "--changes", "0/5DC..latest", "--format", "json")
    assert counted.exit_code == 0, counted.output
    assert json.loads(counted.stdout) == [{"n": len(rows)}]
    assert feed.stored() == before
    assert mirror.database.rows("SELECT count(*) FROM modak.feed_pins") == [(0,)]


_PIN: LiteralString = """
INSERT INTO modak.feed_pins (feed_id, snapshot_id, expires_at) SELECT feed_id, 1, now() + interval '15 minutes'
  FROM modak.change_feeds RETURNING pin_id
"""


_LONG_PIN: LiteralString = """
INSERT INTO modak.feed_pins (feed_id, snapshot_id, expires_at) SELECT feed_id, 1, now() + interval '25 hours'
  FROM modak.feed_pins WHERE pin_id = %s
"""


@pytest.mark.usefixtures("feed")
def test_a_reader_changes_its_pins_and_no_others(mirror: Mirror, reader: ReaderRole) -> None:
    ((ours,),) = mirror.database.rows(_PIN)
    with psycopg.connect(reader.dsn, autocommit=True) as connection:
        row = connection.execute(_PIN).fetchone()
        assert row is not None
        for statement in (
            "UPDATE modak.feed_pins SET expires_at = now() + interval '1 hour' WHERE pin_id = %s",
            "DELETE FROM modak.feed_pins WHERE pin_id = %s",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="belongs to the role"):
                connection.execute(statement.encode(), (ours,))
        for statement in (
            "UPDATE modak.feed_pins SET expires_at = now() + interval '25 hours' WHERE pin_id = %s",
            _LONG_PIN,
        ):
            with pytest.raises(psycopg.errors.CheckViolation, match="lasts 24:00:00 at most"):
                connection.execute(statement.encode(), row)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not be given away"):
            connection.execute("UPDATE modak.feed_pins SET made_by = 'other' WHERE pin_id = %s", row)
        connection.execute("DELETE FROM modak.feed_pins WHERE pin_id = %s", row)
        mirror.database.execute("UPDATE modak.feed_pins SET expires_at = now() - interval '1 s'")
        assert connection.execute("DELETE FROM modak.feed_pins WHERE pin_id = %s", (ours,)).rowcount == 1
