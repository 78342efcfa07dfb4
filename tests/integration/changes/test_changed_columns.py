"""Changes from before and after an ALTER TABLE are read with the columns of the newest, in old rows too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirror_pump.model import FeedMode, format_lsn
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.rest_catalog import served

_ALTERED = (
    "ALTER TABLE t ADD COLUMN w uuid",
    "ALTER TABLE t RENAME COLUMN v TO u",
    "ALTER TABLE t DROP COLUMN gone",
)
_WRITTEN = (
    ("INSERT INTO t VALUES (1, 'a', 1.5)", "UPDATE t SET v = 'b' WHERE id = 1", "INSERT INTO t VALUES (2, 'x', 'NaN')"),
    ("UPDATE t SET v = 'c', w = '00000000-0000-0000-0000-00000000000a' WHERE id = 1",),
    ("UPDATE t SET u = 'd' WHERE id = 1", "DELETE FROM t WHERE id = 2"),
    ("UPDATE t SET u = 'e' WHERE id = 1",),
)
_W = "00000000-0000-0000-0000-00000000000a"
_FINAL: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("insert", {"id": 1, "u": "a", "w": None}, None),
    ("update", {"id": 1, "u": "b", "w": None}, {"id": 1, "u": "a", "w": None}),
    ("insert", {"id": 2, "u": "x", "w": None}, None),
    ("update", {"id": 1, "u": "c", "w": _W}, {"id": 1, "u": "b", "w": None}),
    ("update", {"id": 1, "u": "d", "w": _W}, {"id": 1, "u": "c", "w": _W}),
    ("delete", {"id": 2}, {"id": 2, "u": "x", "w": None}),
    ("update", {"id": 1, "u": "e", "w": _W}, {"id": 1, "u": "d", "w": _W}),
]


@pytest.mark.parametrize("together", [pytest.param(True, marks=pytest.mark.further), False])
def test_columns_follow_in_new_and_old_rows(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, *, together: bool
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, gone numeric(4,1))")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t", feed=FeedOptions(FeedMode.ROWS))
    mirror.catch_up()
    begin = mirror.frontier()
    ends = []
    for number, statements in enumerate(_WRITTEN):
        if number:
            database.execute(_ALTERED[number - 1])
        database.execute(*statements)
        ends.append(database.lsn())
        if not together:
            mirror.catch_up()
    mirror.catch_up()
    printed = _printed(run, mirror, begin, mirror.frontier())
    assert printed == _FINAL
    with served(mirror.settings) as catalog:
        counts = [sum(map(len, _WRITTEN[:number])) for number in range(len(_WRITTEN) + 1)]
        for number, (since, until) in enumerate(zip([begin, *ends], ends, strict=False)):
            expected = _FINAL[counts[number] : counts[number + 1]]
            name = f"mirror@{format_lsn(since)}..{format_lsn(until)}".replace("/", "-")
            with catalog.duckdb(name) as connection:
                rows = connection.execute(
                    "SELECT _op, id, u, CAST(w AS VARCHAR) AS w, _old.u AS old_u, CAST(_old.w AS VARCHAR) AS old_w"
                    " FROM lake.public.t ORDER BY _lsn, _seq"
                ).fetchall()
            assert rows == [_flat(*change) for change in expected]
            table = catalog.pyiceberg(name).load_table(("public", "t")).scan().to_arrow()
            assert sorted(table.column("_op").to_pylist()) == sorted(op for op, *_ in expected)
            assert table.num_rows == len(expected)


def _printed(run: RunCommand, mirror: Mirror, since: int, until: int) -> list[tuple[Any, ...]]:
    ends = ("--since", format_lsn(since), "--until", format_lsn(until))
    result = run("changes", "t", "--slot", mirror.settings.slot, "--json", *ends)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [(line["op"], line["row"], line["old"]) for line in lines if "op" in line]


def _flat(operation: str, row: dict[str, Any], old: dict[str, Any] | None) -> tuple[Any, ...]:
    return (operation, row["id"], row.get("u"), row.get("w"), (old or {}).get("u"), (old or {}).get("w"))


@pytest.mark.further
def test_columns_that_are_called_like_those_of_the_feed(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    """Each is added later, and the second has the name that the first has got in the feed, which gets another."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t", feed=FeedOptions(FeedMode.KEYS))
    mirror.catch_up()
    begin = mirror.frontier()
    for number, column in enumerate(('"_lsn"', '"_lsn__column"', '"_Op"')):
        database.execute(f"ALTER TABLE t ADD COLUMN {column} int", f"INSERT INTO t (id, {column}) VALUES ({number}, 7)")
        mirror.catch_up()
    rows = [row for _, row, _ in _printed(run, mirror, begin, mirror.frontier())]
    filled = [{name for name, value in row.items() if value == 7} for row in rows]
    assert filled == [{"_lsn__column_"}, {"_lsn__column"}, {"_Op__column"}]
    assert database.rows("SELECT error FROM modak.change_feeds WHERE error IS NOT NULL") == []
