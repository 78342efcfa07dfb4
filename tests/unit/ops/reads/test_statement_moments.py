"""A table's own moment leaves the statement, and only that."""

from __future__ import annotations

import duckdb
import pytest

from mirror_pump.errors import UsageError
from mirror_pump.model import Lsn
from mirror_pump.ops.reads.statement_moments import with_views
from mirror_pump.ops.reads.time_travel import PastPoint

_LSN = PastPoint(Lsn(0x16_0000_00AB), None)
_TIME = PastPoint(None, 1_795_190_400_000)
_T0, _T1 = '"mirror_pump_past"."t0"', '"mirror_pump_past"."t1"'


@pytest.mark.parametrize(
    ("statement", "moments"),
    [
        ("FROM orders AT '16/AB'", [("orders", _LSN)]),
        ("FROM orders at'16/AB'", [("orders", _LSN)]),
        ("FROM orders AT (VERSION => '16/AB')", [("orders", _LSN)]),
        ("FROM orders AT (VERSION => '2026-11-20T16:00:00Z')", [("orders", _TIME)]),
        ("FROM orders AT (TIMESTAMP => '2026-11-20 16:00')", [("orders", _TIME)]),
        ("FROM orders AT (TIMESTAMP => TIMESTAMP '2026-11-20 16:00')", [("orders", _TIME)]),
        (
            "SELECT * FROM shop.orders AT '16/AB' JOIN orders o AT '2026-11-20 16:00' USING (id)",
            [("shop.orders", _LSN), ("orders", _TIME)],
        ),
        (
            "WITH o AS (FROM orders AT '16/AB') SELECT (SELECT count(*) FROM \"a b\" AT '16/AB') FROM o",
            [("orders", _LSN), ("a b", _LSN)],
        ),
        ("EXPLAIN ANALYZE FROM orders AT '16/AB'", [("orders", _LSN)]),
    ],
)
def test_moments_are_found_and_replaced(statement: str, moments: list[tuple[str, PastPoint]]) -> None:
    rewritten, tables = with_views(statement)
    assert {(".".join(table.parts), table.when) for table in tables} == set(moments)
    assert all(table.view.replace('"', "") in rewritten.replace('"', "") for table in tables)
    assert "16/AB" not in rewritten
    assert "2026" not in rewritten
    assert rewritten.startswith("EXPLAIN ANALYZE ") == statement.startswith("EXPLAIN ANALYZE ")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'at ''16/AB'''",
        "SELECT 1 AS at, '16/AB'",
        "SELECT now() AT TIME ZONE 'UTC'",
        "FROM orders -- AT '16/AB'",
        "SELECT * FROM t WHERE format('at (''x'')') = 'at ''y'",
        'SELECT at.x FROM t AS "at"',
        "SELECT $$ orders AT '16/AB' $$",
    ],
)
def test_other_statements_stay_as_they_are(statement: str) -> None:
    assert with_views(statement) == (statement, ())


def test_the_rewritten_statement_means_the_same() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE orders (id int, n int); INSERT INTO orders VALUES (1, 2), (3, 4)")
        connection.execute("CREATE SCHEMA mirror_pump_past")
        connection.execute(
            "CREATE TABLE mirror_pump_past.t0 (id int, n int); INSERT INTO mirror_pump_past.t0 VALUES (1, 9)"
        )
        connection.execute("CREATE VIEW mirror_pump_past.t1 AS FROM mirror_pump_past.t0")
        for statement, wanted in {
            "SELECT orders.id, orders.n FROM orders AT '16/AB'": [(1, 9)],
            "SELECT now.n - old.n FROM orders now JOIN orders old AT '16/AB' USING (id)": [(-7,)],
            "(FROM orders AT '16/AB' EXCEPT FROM orders) ORDER BY 1 DESC LIMIT 1": [(1, 9)],
            "SELECT sum(n) FILTER (n > 3) FROM (FROM orders AT '16/AB' UNION ALL FROM orders AT '16/AB')": [(18,)],
        }.items():
            assert connection.execute(with_views(statement)[0]).fetchall() == wanted


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("FROM orders AT '9 o clock'", "neither a WAL position nor a time"),
        ("FROM orders AT (VERSION => 5)", "the moment of orders is not a text constant"),
        ("FROM orders AT (VERSION => 'a' || 'b')", "the moment of orders is not a text constant"),
        ("FROM shop.orders AT (TIMESTAMP => '16/AB')", "the moment of shop.orders is not a time: 16/AB"),
    ],
)
def test_wrong_moments_are_refused(statement: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        with_views(statement)
