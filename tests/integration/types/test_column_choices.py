"""`register --column` and `--exclude-column`: checked before anything happens, kept as long as the table is
registered."""

from __future__ import annotations

from decimal import Decimal

import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.table_wishes import parse_choices


def lake_types(mirror: Mirror, table: str = "public.t") -> dict[str, str]:
    fields = LakeTable.load(mirror.location(table), StorageOptions()).schema.fields
    return {field.name: str(field.type) for field in fields}


@pytest.mark.parametrize(
    ("columns", "excluded", "message"),
    [
        (["amount"], [], "no lake type"),
        (["=string"], [], "no lake type"),
        (["amount=decimal(39,2)"], [], "decimal"),
        (["amount=decimal(2,3)"], [], "decimal"),
        (["amount=decimal(0,0)"], [], "decimal"),
        (["amount=money"], [], "money"),
        (["amount=list<list<string>>"], [], "list"),
        (["a=string", "a=long"], [], "twice"),
        (["a=string"], ["a"], "both be excluded and have a type"),
    ],
)
def test_options_that_are_none(columns: list[str], excluded: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_choices(columns, excluded)


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE DOMAIN amount AS numeric",
        "CREATE TABLE t (id int PRIMARY KEY, amount numeric, price amount, small int2, big int8, narrow numeric(5,2),"
        " many numeric[], words text[], secret text, day date, at timestamptz, f float8, gone text,"
        f" double numeric GENERATED ALWAYS AS (amount * 2) {'STORED' if major_version() < 18 else 'VIRTUAL'})",
        "ALTER TABLE t DROP COLUMN gone",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


@pytest.mark.further
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (ColumnChoices(excluded=frozenset({"id"})), "part of its key"),
        (ColumnChoices(excluded=frozenset({"nothing"})), "not a column"),
        (ColumnChoices(excluded=frozenset({"double"})), "generated"),
        (parse_choices(["f=decimal(38,9)"], []), "not every value"),
        (parse_choices(["amount=double"], []), "not every value"),
        (parse_choices(["big=int"], []), "not every value"),
        (parse_choices(["words=list<long>"], []), "not every value"),
        (parse_choices(["secret=decimal(5,2)"], []), "not every value"),
        (parse_choices(["amount=list<string>"], []), "not every value"),
        (parse_choices(["day=timestamp"], []), "not every value"),
    ],
)
def test_what_loses_values_is_refused_before_anything_happens(
    mirror: Mirror, choices: ColumnChoices, message: str
) -> None:
    with pytest.raises(TableError, match=message) as refused:
        mirror.register("t", choices=choices)
    assert refused.value.remedy
    assert mirror.state("public.t") == ""
    assert mirror.database.rows("SELECT * FROM pg_publication_tables") == []


def test_choices_hold_through_copy_stream_changes_and_restarts(mirror: Mirror) -> None:
    database = mirror.database
    choices = parse_choices(
        [
            "amount=decimal(38,9)",
            "price = decimal(20,4)".replace(" = ", "="),
            "small=decimal(3,0)",
            "big=string",
            "narrow=string",
            "many=list<decimal(10,1)>",
            "words=string",
            "at=string",
        ],
        ["secret", "f"],
    )
    database.execute(
        "INSERT INTO t VALUES (1, 1.5, 2.25, 7, 8, 9.5, '{1.5,2}', '{a,b}', 'hidden', '2026-01-01', '2026-01-01', 1)",
        "INSERT INTO t VALUES (2, 'NaN', 1e30, 1000, -8, 'NaN', '{0.25}', '{{a}}', 'hidden', 'infinity', 'infinity')",
    )
    with mirror.pumping():
        mirror.register("t", choices=choices)
        mirror.await_live("public.t")
        types = lake_types(mirror)
        assert "secret" not in types
        assert "f" not in types
        assert types["amount"] == "decimal(38,9)"
        assert types["at"] == types["words"] == types["big"] == "string"
        database.execute(
            "INSERT INTO t SELECT id + 10, amount, price, small, big, narrow, many, words, 'more', day, at, 2 FROM t",
            "UPDATE t SET secret = 'changed', f = 3",
            "UPDATE t SET amount = 1e-10 WHERE id = 11",
        )
        mirror.await_frontier()
    with mirror.pumping():
        # Excluded and chosen columns are renamed and dropped, while the rest of the table is mirrored.
        database.execute(
            "ALTER TABLE t RENAME COLUMN secret TO hidden",
            "ALTER TABLE t RENAME COLUMN amount TO total",
            "UPDATE t SET hidden = 'again', total = 3.25 WHERE id = 1",
            "ALTER TABLE t DROP COLUMN f",
            "ALTER TABLE t ADD COLUMN secret int",
            "UPDATE t SET secret = 5 WHERE id = 1",
            "INSERT INTO t (id, total, hidden) VALUES (20, 12.5, 'x')",
        )
        mirror.await_frontier()
        assert mirror.error("public.t") == ""
        assert mirror.state("public.t") == "live"
    assert lake_types(mirror)["total"] == "decimal(38,9)"
    rows = {row["id"]: row for row in read_duckdb(mirror.location("public.t")).to_pylist()}
    assert set(rows) == {1, 2, 11, 12, 20}
    assert "hidden" not in rows[1]
    assert [(rows[n]["total"], rows[n]["total__raw"]) for n in (1, 2, 11, 12, 20)] == [
        (Decimal("3.250000000"), None),
        (None, "NaN"),
        (None, "0.0000000001"),
        (None, "NaN"),
        (Decimal("12.500000000"), None),
    ]
    for copied, streamed in ((1, 11), (2, 12)):
        same = set(rows[1]) - {"id", "total", "total__raw", "secret"}
        assert {name: rows[copied][name] for name in same} == {name: rows[streamed][name] for name in same}
    assert rows[1]["secret"] == 5
    assert (rows[2]["small"], rows[2]["small__raw"]) == (None, "1000")
    assert (rows[2]["price"], rows[2]["price__raw"]) == (None, "1" + "0" * 30)
    assert (rows[2]["narrow"], rows[2]["at"], rows[2]["words"]) == ("NaN", "infinity", "{{a}}")
    assert (rows[1]["many"], rows[2]["many"], rows[2]["many__raw"]) == (
        [Decimal("1.5"), Decimal("2.0")],
        None,
        "{0.25}",
    )
    assert assert_verified(database) == 1
    with pytest.raises(TableError, match=r"--column 'total=decimal\(38,9\)'.*--exclude-column hidden"):
        mirror.register("t", choices=parse_choices(["big=decimal(20,0)"], []))
    mirror.register("t")


def test_a_float_key_as_text(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (f float8 PRIMARY KEY, v int)",
        "INSERT INTO t VALUES ('NaN', 1), ('-0', 2), ('-Infinity', 3), (0.1, 4)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        with pytest.raises(TableError) as refused:
            mirror.register("t")
        assert "--column f=string" in refused.value.remedy
        mirror.register("t", choices=parse_choices(["f=string"], []))
        mirror.await_live("public.t")
        database.execute(
            "UPDATE t SET f = 0 WHERE v = 2",
            "UPDATE t SET v = 10 WHERE f = 'NaN'",
            "DELETE FROM t WHERE f = '-Infinity'",
        )
        mirror.await_frontier()
    found = read_duckdb(mirror.location("public.t"), "SELECT f, v FROM lake ORDER BY v").to_pylist()
    assert [(row["f"], row["v"]) for row in found] == [("0", 2), ("0.1", 4), ("NaN", 10)]
