"""Which tables a statement names, whatever is in them."""

from __future__ import annotations

import duckdb
import pytest

from mirror_pump.errors import UsageError
from mirror_pump.ops.reads.statement_moments import with_views
from mirror_pump.ops.reads.statement_tables import tables_of


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        # DuckDB's own list of names needs the columns of these.
        ("SELECT count(*) FROM orders JOIN events USING (id)", {("orders",), ("events",)}),
        ("FROM orders NATURAL JOIN events", {("orders",), ("events",)}),
        ("SELECT columns('a.*') FROM orders", {("orders",)}),
        ('FROM s.t, "S x"."a""b.c", d.s.t', {("s", "t"), ("S x", 'a"b.c'), ("d", "s", "t")}),
        ("DESCRIBE t", {("t",)}),
        ("SUMMARIZE SELECT * FROM t", {("t",)}),
        ("SHOW TABLES", set[str]()),
        ("VALUES (1)", set[str]()),
        ("SELECT (SELECT max(x) FROM a) FROM b WHERE x IN (FROM c) ORDER BY (SELECT 1 FROM d)", set("abcd")),
        ("FROM a AS b UNION ALL SELECT * FROM c LIMIT (SELECT count(*) FROM d)", set("acd")),
        # Names from WITH.
        ("WITH a AS (FROM x), b AS (FROM A JOIN y USING (k)) FROM B, s.a", {("x",), ("y",), ("s", "a")}),
        ("WITH t AS (SELECT * FROM t WHERE k > 1) FROM t", set("t")),
        ("WITH b AS (FROM a), a AS (SELECT 1) FROM b", set("a")),
        ("SELECT (WITH z AS (FROM k) SELECT max(v) FROM z) FROM z", set("kz")),
        ("WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t JOIN a USING (x)) FROM t", set("a")),
    ],
)
def test_tables_are_found(query: str, tables: set[str | tuple[str, ...]]) -> None:
    expected = {table if isinstance(table, tuple) else (table,) for table in tables}
    with duckdb.connect() as connection:
        assert tables_of(connection, query) == expected


@pytest.mark.parametrize("text", ["SELEC 1", "INSERT INTO t SELECT 1", "SELECT FROM WHERE"])
def test_other_texts_are_refused(text: str) -> None:
    with duckdb.connect() as connection, pytest.raises(duckdb.ParserException):
        tables_of(connection, text)


@pytest.mark.parametrize("moment", ["", " AT '0/1'"])
def test_a_statement_that_is_too_deep_is_refused(moment: str) -> None:
    """Wherever its depth becomes too much: for the reader, for the printer or for Python."""

    def tables(depth: int) -> frozenset[tuple[str, ...]]:
        query = "SELECT " + "(" * depth + "id" + " + 1)" * depth + f" FROM orders{moment}"
        with duckdb.connect() as connection:
            return tables_of(connection, with_views(query)[0])

    assert len(tables(50)) == 1
    for depth in (200, 300, 500, 900):
        try:
            assert len(tables(depth)) == 1
        except UsageError:
            break
    for deeper in range(depth, 1000, 50):
        with pytest.raises(UsageError, match="nested too deeply"):
            tables(deeper)
