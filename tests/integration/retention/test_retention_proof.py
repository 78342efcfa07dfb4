"""The proof finds every difference and no false ones, whatever the types."""

from __future__ import annotations

from typing import Any, LiteralString

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize

from mirror_pump.engine.comparison.row_hashes import HashSecret, _values, mixed, row_hashes
from mirror_pump.engine.comparison.short_values import SHORT
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.drop_proof import Prover
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.pins import PinnedSet
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.connect import connect
from mirror_pump.source.heap.packed_columns import packable
from mirror_pump.source.retention.partitions import read_partitions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.retention_table import at_once
from tests.support.tiered import tiered

# Values that the lake holds as themselves, as text, as a list, and in a raw text column.
COLUMNS = {
    "a": ("float8", ("-0", "NaN", "Infinity", "0.1")),
    "b": ("float4", ("-0", "NaN", "3.4028235e38", "1")),
    "c": ("numeric(10,2)", ("1.10", "NaN", "-99999999.99", "0")),
    "d": ("numeric", ("1.10", "Infinity", "0.000", "1e400")),
    "e": ("numeric(38,10)", ("1.1", "9999999999999999999999999999.9999999999", "NaN", "-1")),
    "f": ("text", ("", "null", "\u2603", "x" * 100_000)),
    "g": ("char(4)", ("ab", "", "abcd", "z")),
    "h": ("bool", ("t", "f", "t", "f")),
    "i": ("bytea", (r"\xdead", r"\x", r"\x00", r"\xff")),
    "j": ("uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",) * 4),
    "k": ("date", ("infinity", "0044-03-15 BC", "5874897-12-31", "2026-01-31")),
    "l": ("timestamp", ("-infinity", "0044-03-15 01:02:03.000001 BC", "294276-12-31 23:59:59.999999", "2026-01-01")),
    "m": ("timestamptz", ("infinity", "2026-03-29 02:30:00.5+02", "12345-06-07 00:00:00+00", "1970-01-01")),
    "n": ("time", ("24:00:00", "00:00:00", "23:59:59.999999", "12:00")),
    "o": ("interval", ("1 year 2 mons -3 days 04:05:06.7", "-00:00:01", "0", "1 day")),
    "p": ("json", ('{"b":1,  "a":[1.0, null]}', "null", '"text"', "3")),
    "q": ("jsonb", ('{"b": 1}', "null", '"text"', "3.00")),
    "r": ("int4[]", ("{1,NULL,3}", "[0:1]={7,8}", "{{1,2},{3,4}}", "{}")),
    "s": ("text[]", ('{a,"b c",NULL}', "{}", '{""}', "{a}")),
    "u": ("numeric(10,2)[]", ("{1.10,NaN}", "{}", "{0}", "{1,2,3}")),
    "v": ("float8[]", ("{-0,NaN}", "{0}", "{}", "{1}")),
    "w": ("inet", ("10.0.0.1", "10.0.0.0/8", "::1", "10.0.0.2")),
    "x": ("int4range", ("[1,4)", "empty", "(,)", "[5,6)")),
    "y": ("oid", ("4294967295", "0", "1", "2")),
    "z": ("smallint", ("-32768", "0", "32767", "1")),
}


def test_every_type_is_proven(database: Database, warehouse: str) -> None:
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(2), retention_interval=0.1)
    listed = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    with database.connect() as connection:
        connection.execute(
            f"CREATE TABLE odd (id text, at int, {listed}, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)".encode()
        )
        for number in range(3):
            connection.execute(
                f"CREATE TABLE odd{number} PARTITION OF odd FOR VALUES FROM ({number}0) TO ({number + 1}0)".encode()
            )
        names, marks = ", ".join(COLUMNS), ", ".join(["%s"] * len(COLUMNS))
        insert = f"INSERT INTO odd (id, at, {names}) VALUES (%s, %s, {marks})".encode()
        for number in range(4):
            texts = [values[number] for _, values in COLUMNS.values()]
            connection.execute(insert, [f"copied {number}", number, *texts])
        connection.execute("INSERT INTO odd (id, at) VALUES ('nulls', 5), ('top', 29)")
        mirror.register("odd", retention=at_once("1000"))
        mirror.catch_up()
        for number in range(4):
            texts = [values[number] for _, values in COLUMNS.values()]
            connection.execute(insert, [f"streamed {number}", number, *texts])
        connection.execute("UPDATE odd SET f = 'changed' WHERE id = 'copied 1'")
        connection.execute("UPDATE modak.tables SET heap_retention_lag = 10")
        with mirror.pumping():
            await_true(
                lambda: connection.execute("SELECT to_regclass('odd0')::text").fetchone() == (None,),
                40,
                "odd0 is dropped",
            )
    proven = database.rows("SELECT details -> 'rows' FROM modak.op_log WHERE details ->> 'kind' = 'prove'")
    assert proven == [(9,)]


# What no trigger has seen, and which keys then differ. Rows 1 and 2 are alike but for the named columns.
UNSEEN: dict[str, tuple[LiteralString, set[str]]] = {
    "nothing": ("SELECT", set()),
    "one value": ("UPDATE k0 SET n = n + 1 WHERE at = 1", {"1: other values"}),
    "values swapped between rows": (
        "UPDATE k0 SET n = 3 - n WHERE at IN (1, 2)",
        {"1: other values", "2: other values"},
    ),
    "values swapped between columns": ("UPDATE k0 SET t = u, u = t WHERE at = 1", {"1: other values"}),
    "a byte moved to the next column": (
        "UPDATE k0 SET t = 'text of on', u = 'eother' WHERE at = 1",
        {"1: other values"},
    ),
    "NULL for an empty text": ("UPDATE k0 SET e = NULL WHERE at = 1", {"1: other values"}),
    "an empty text for NULL": ("UPDATE k0 SET z = '' WHERE at = 1", {"1: other values"}),
    "zero for NULL": ("UPDATE k0 SET i = 0 WHERE at = 1", {"1: other values"}),
    "a trailing blank": ("UPDATE k0 SET t = t || ' ' WHERE at = 1", {"1: other values"}),
    "a trailing zero byte": (r"UPDATE k0 SET b = b || '\x00' WHERE at = 1", {"1: other values"}),
    "the end of a long text": ("UPDATE k0 SET l = left(l, -1) || '.' WHERE at = 1", {"1: other values"}),
    "a long text in another order": ("UPDATE k0 SET l = right(l, 7) || left(l, -7) WHERE at = 1", {"1: other values"}),
    "-0.0": ("UPDATE k0 SET f = '-0' WHERE at = 1", {"1: other values"}),
    "NaN": ("UPDATE k0 SET f = 'NaN' WHERE at = 1", {"1: other values"}),
    "numeric NaN": ("UPDATE k0 SET d = 'NaN' WHERE at = 1", {"1: other values"}),
    "the sign of a numeric": ("UPDATE k0 SET d = -d, w = -w WHERE at = 1", {"1: other values"}),
    "the scale of a numeric that the lake has as text": ("UPDATE k0 SET s = 1.10 WHERE at = 1", {"1: other values"}),
    "the last digit of a wide numeric": ("UPDATE k0 SET w = w + 0.01 WHERE at = 1", {"1: other values"}),
    "a microsecond": ("UPDATE k0 SET c = c + interval '1 us' WHERE at = 1", {"1: other values"}),
    "infinity": ("UPDATE k0 SET c = 'infinity' WHERE at = 1", {"1: other values"}),
    "a bit of a uuid": ("UPDATE k0 SET x = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a10' WHERE at = 1", {"1: other values"}),
    "NULL in a list": ("UPDATE k0 SET a = '{NULL,1}' WHERE at = 1", {"1: other values"}),
    "a row too few": ("DELETE FROM k0 WHERE at = 1", {"1: not in the heap"}),
    "a row too many": ("INSERT INTO k0 SELECT 90, n, t FROM k0 WHERE at = 1", {"90: not in the lake"}),
    "a row under another key": ("UPDATE k0 SET at = 90 WHERE at = 1", {"1: not in the heap", "90: not in the lake"}),
}


_OF_ROWS = ("the scale of a numeric that the lake has as text", "NULL in a list")
_RESTORE: LiteralString = "DELETE FROM k0; INSERT INTO k0 SELECT * FROM present"


_BY_ROWS: dict[str, tuple[LiteralString, LiteralString]] = {
    "s": (" s numeric,", " 1.1,"),
    "a": (", a int[]", ", '{1,NULL}'"),
}
"""Columns by which the heap is read row by row, and not by columns: their definitions and values."""


@pytest.mark.parametrize("by_columns", [False, pytest.param(True, marks=pytest.mark.further)])
def test_what_no_trigger_has_seen_is_found_by_the_proof(database: Database, warehouse: str, by_columns: bool) -> None:
    runner = ThreadTaskRunner(2)
    mirror = Mirror.create(database, warehouse, runner, retention_interval=0.1)
    s, a = (("", "") if by_columns else column for column in _BY_ROWS.values())
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE kept (at int PRIMARY KEY, n int, t text, u text, e text, z text, i int, b bytea, l text,"
            f" f float8, d numeric(10,2),{s[0]} w numeric(30,2), c timestamptz, x uuid{a[0]})"
            " PARTITION BY RANGE (at)".encode()
        )
        for number in range(3):
            connection.execute(
                f"CREATE TABLE k{number} PARTITION OF kept FOR VALUES FROM ({number}00) TO ({number + 1}00)".encode()
            )
        connection.execute(
            "INSERT INTO kept SELECT g, CASE WHEN g < 3 THEN g ELSE g * 7 END, 'text of one', 'other', '', NULL, NULL,"
            f" '\\xff', repeat('a long text ', 400), 0, 1.10,{s[1]} 1234567890123456789012345.67, '2026-01-01',"
            f" 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'{a[1]} FROM generate_series(1, 250) g"
            " WHERE g < 9 OR g > 245".encode()
        )
        mirror.register("kept", retention=tiered(lag="100", keep_heap=True))
        with mirror.pumping():
            await_true(
                lambda: (
                    connection.execute("SELECT state FROM modak.partitions WHERE partition_id = 'public.k0'").fetchone()
                    == ("tiered",)
                ),
                40,
                "k0 is in heap and lake",
            )
        connection.execute("CREATE TABLE present AS SELECT * FROM k0")
        (table,) = load_tables(connection, mirror.settings.slot)
        assert packable(table.columns) == by_columns
        (partition,) = (p for p in read_partitions(connection, table.table_id) if p.partition_id == "public.k0")
        limits = InternalLimits(proof_task_bytes=ByteSize(32768))
        prover = Prover(
            lambda: connect(database.dsn, autocommit=True),
            Tasks(runner, lambda: False),
            StorageOptions(),
            database.dsn,
            limits,
        )
        left_out = _OF_ROWS if by_columns else ()
        unseen = {name: change for name, change in UNSEEN.items() if name not in left_out}
        for name, (change, differing) in (*unseen.items(), ("nothing any more", UNSEEN["nothing"])):
            with connection.transaction():
                connection.execute("ALTER TABLE k0 DISABLE TRIGGER ALL")
                connection.execute(_RESTORE)
                connection.execute(change)
                connection.execute("ALTER TABLE k0 ENABLE ALWAYS TRIGGER zz_modak_row")
            assert {*prover.prove(table, partition).differing} == differing, name
    runner.close()


def test_a_proof_keeps_the_published_snapshot_for_as_long_as_it_takes(
    database: Database, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pin is short and renewed with every task: a pin that a killed pump leaves behind delays drops for two
    minutes."""
    monkeypatch.setattr(PinnedSet, "is_fresh", property(lambda _pins: False))
    limits = InternalLimits(proof_task_bytes=ByteSize(8192))
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(2), limits=limits)
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (at int PRIMARY KEY, v text) PARTITION BY RANGE (at)")
        connection.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (1000)")
        connection.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1000) TO (2000)")
        connection.execute("INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(0, 1999) g")
        mirror.register("t", retention=at_once("1000000"))
        mirror.catch_up()
        connection.execute("CREATE TABLE pins (act text)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.pins"
            " VALUES (TG_OP); RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON modak.read_pin_rows"
            " FOR EACH ROW EXECUTE FUNCTION note()"
        )
        connection.execute("UPDATE modak.tables SET heap_retention_lag = 900")
        with mirror.pumping():
            await_true(
                lambda: connection.execute("SELECT to_regclass('t0')::text").fetchone() == (None,), 40, "t0 is dropped"
            )
    acts = dict(database.rows("SELECT act, count(*) FROM pins GROUP BY act"))
    assert acts["INSERT"] == acts["DELETE"]
    blocks = 1000 * 200 // 8192
    assert acts["UPDATE"] >= blocks


SECRET = HashSecret((0x123456789ABCDEF, 0xFEDCBA987654321), (1, 2))

_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf")]),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=2), max_size=3),
    pa.date32(): st.dates(),
}


@given(data=st.data())
def test_rows_hash_alike_if_and_only_if_they_are(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=3))
    rows = data.draw(
        st.lists(st.tuples(*(st.none() | _VALUES[kind] for kind in kinds)), min_size=1, max_size=8), label="rows"
    )
    columns = {place + 1: pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)}
    begin = data.draw(st.integers(0, len(rows) - 1), label="slice")
    first, second = row_hashes(columns, len(rows), SECRET)
    part = row_hashes({name: column.slice(begin) for name, column in columns.items()}, len(rows) - begin, SECRET)
    assert (part[0] == first[begin:]).all(), "where a row stands does not matter"
    assert (part[1] == second[begin:]).all()
    for here in range(len(rows)):
        for there in range(here):
            same = repr(rows[here]) == repr(rows[there])
            assert (first[here] == first[there]) is np.bool_(same)
            assert (second[here] == second[there]) is np.bool_(same)


def _thue_morse(size: int, *, complement: bool) -> str:
    return "".join("ab"[(place.bit_count() + complement) % 2] for place in range(size))


def _marked(place: int) -> bytes:
    return b"\0" * place + b"\1" + b"\0" * (5000 - place)


def _pair_of_words(first: int) -> bytes:
    """16 bytes: the second word undoes the effect of the first on a chain of `mixed`."""
    word = np.array([first], np.uint64)
    return word.tobytes() + mixed(word).tobytes()


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (_thue_morse(4096, complement=False), _thue_morse(4096, complement=True), pa.string()),
        # One part further, and one block of parts further.
        (_marked(0), _marked(7), pa.binary()),
        (_marked(7), _marked(7 * 256), pa.binary()),
        (b"a", b"a\0", pa.binary()),
        (b"", b"\0" * 7, pa.binary()),
        (_pair_of_words(1), _pair_of_words(2), pa.binary(16)),
        ([None], [-1 - int(MULTIPLIER) + (1 << 64)], pa.list_(pa.int64())),
        ([None, 1], [1, None], pa.list_(pa.int64())),
    ],
)
def test_values_that_were_chosen_to_meet_do_not(one: Any, other: Any, kind: pa.DataType) -> None:
    for _ in range(5):
        lanes = row_hashes({1: pa.array([one, other], kind)}, 2, HashSecret.draw())
        assert all(lane[0] != lane[1] for lane in lanes)


def test_a_long_text_is_the_polynomial_of_its_bytes() -> None:
    """Computed with Python's own integers, and independent of neighbouring values."""
    prime = (1 << 61) - 1
    sizes = [SHORT + 1, 7 * 256, 7 * 256 + 1, 7 * 100, 500_000]
    texts = [np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    for point, words in zip(SECRET.points, _values(pa.array(texts, pa.binary()), SECRET.points), strict=True):
        expected = []
        for text in texts:
            value, power = len(text), 1
            for start in range(0, len(text), 7):
                power = power * point % prime
                value += int.from_bytes(text[start : start + 7], "little") * power
            expected.append(value % prime)
        assert (words == mixed(np.array(expected, np.uint64))).all()


@pytest.mark.parametrize("one", [["a", "bc"], ["ab", None]])
def test_neighbouring_columns_do_not_run_together(one: list[str | None]) -> None:
    columns = [{1: pa.array([row[0]], pa.string()), 2: pa.array([row[1]], pa.string())} for row in (one, ["ab", "c"])]
    assert row_hashes(columns[0], 1, SECRET)[0] != row_hashes(columns[1], 1, SECRET)[0]
    # A column that one side lacks counts as a column of NULLs.
    assert (
        row_hashes({1: columns[0][1]}, 1, SECRET)[0]
        == row_hashes({1: columns[0][1], 3: pa.nulls(1, pa.string())}, 1, SECRET)[0]
    )
