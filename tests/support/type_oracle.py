"""The oracle of the type tests: Postgres's own text and arithmetic, and how engines present the lake's values.

The pool is a table with a column for each case (type_cases.py) and a row for each of its values. A value's comparable
form is the same whether it is computed from what Postgres prints or from what an engine returns.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from tests.support.local_files import path_of
from tests.support.type_cases import BUILT_IN, EXTENSIONS, SETUP, USERS, Case, array_of, on_this_server

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

CASES = tuple(
    variant
    for case in (*BUILT_IN, *USERS)
    if on_this_server(case)
    for variant in (case, array_of(case))
    if variant is not None
)
ROWS = 1 + max(len(case.values) + len(case.unheld) for case in CASES)

KEYS = (
    "int2", "int4", "int8", "oid", "text", "varchar", "char(5)", "name", "bytea", "uuid", "date", "timestamp",
    "timestamptz", "numeric", "numeric(14,2)", "numeric(39,0)", "boolean", "mood", "calm", "inet", "citext",
    "interval", "timetz", "time", "money", "ltree", "pair", "int4range", "bit(3)", "varbit", "moment",
    "macaddr", "jsonb", "pg_lsn", '"char"', "optional_price", "tid", "cidr", "tsvector", "nummultirange",
)  # fmt: skip
"""Types of key columns: those with a B-tree, without floats and arrays, which Iceberg does not allow."""


_MICROSECONDS = "(extract(epoch FROM {0}) * 1000000)::numeric(30, 0)"
_NUMBERS = {
    Kind.DATE: "({0} - '1970-01-01'::date)",
    Kind.TIMESTAMP: _MICROSECONDS,
    Kind.TIMESTAMPTZ: _MICROSECONDS,
}
"""How Postgres computes the stored number, for types that are compared as numbers."""


def create_pool(connection: psycopg.Connection[Any], name: str) -> None:
    """Creates the cases' types, and the pool as a table of this name: `id`, `n` = 0, and c0, c1, ..."""
    for extension in EXTENSIONS:
        connection.execute(f"CREATE EXTENSION {extension}".encode())
    for statement in (*SETUP, 'CREATE TABLE "Odd name" (id int CHECK (id > 0))'):
        connection.execute(statement.encode())
    definitions = ", ".join(f"c{n} {case.type}" for n, case in enumerate(CASES))
    connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, {definitions})".encode())
    for row in range(ROWS):
        cells = ", ".join(_cell(case, row) for case in CASES)
        connection.execute(f"INSERT INTO {name} VALUES ({row}, 0, {cells})".encode())


def _cell(case: Case, row: int) -> str:
    values = case.values + case.unheld
    return f"({values[row]})::{case.type}" if row < len(values) else "NULL"


def pool_values(database: Database, name: str) -> tuple[dict[str, list[Any]], dict[str, list[str | None]]]:
    """The pool's columns: what the lake must hold in the typed column, and what Postgres prints."""
    selected, kinds = [], [ColumnType.parse(case.lake) for case in CASES]
    for n, kind in enumerate(kinds):
        element = kind.element
        if element is not None and element.kind in _NUMBERS:
            number = _NUMBERS[element.kind].format("e")
            selected.append(f"(SELECT array_agg({number}) FROM unnest(c{n}) e WHERE isfinite(e) IS NOT FALSE)")
        elif kind.kind in _NUMBERS:
            selected.append(f"CASE WHEN isfinite(c{n}) THEN {_NUMBERS[kind.kind].format(f'c{n}')} END")
        else:
            selected.append("NULL")
    with connect(database.dsn, autocommit=True) as connection:
        # So that names of relations and types have their schema.
        connection.execute("SET search_path = pg_catalog")
        plain = connection.execute(f"SELECT * FROM public.{name} ORDER BY id".encode()).pgresult
        numbers = connection.execute(f"SELECT {', '.join(selected)} FROM public.{name} ORDER BY id".encode()).pgresult
    assert plain is not None
    assert numbers is not None
    expected: dict[str, list[Any]] = {}
    texts: dict[str, list[str | None]] = {}
    for n, (case, kind) in enumerate(zip(CASES, kinds, strict=True)):
        raw = [plain.get_value(row, n + 2) for row in range(ROWS)]
        texts[f"c{n}"] = [None if text is None else text.decode() for text in raw]
        held = [text if row < len(case.values) or not case.unheld else None for row, text in enumerate(texts[f"c{n}"])]
        counted = [numbers.get_value(row, n) for row in range(ROWS)]
        expected[f"c{n}"] = [
            None if text is None else _wanted(text, kind, None if number is None else number.decode())
            for text, number in zip(held, counted, strict=True)
        ]
    return expected, texts


Held = dict[str | None, tuple[Any, str | None]]
"""From a value's text to what the lake must hold: in the typed column, and in the raw text column."""


def held_by_text(database: Database) -> list[Held]:
    """By case, for the pool of that name."""
    expected, texts = pool_values(database, "pool")
    result = []
    for n, case in enumerate(CASES):
        by_text: Held = {None: (None, None)}
        for row, (typed, text) in enumerate(zip(expected[f"c{n}"], texts[f"c{n}"], strict=True)):
            if text is not None:
                by_text[text] = (None, text) if case.unheld and row >= len(case.values) else (typed, None)
        result.append(by_text)
    return result


def _wanted(text: str, kind: ColumnType, number: str | None) -> Any:
    """A value's comparable form, computed from its text or from the number that Postgres computed."""
    match kind.kind:
        case Kind.LIST:
            assert kind.element is not None
            elements = _elements(text)
            if kind.element.kind in _NUMBERS:
                elements = [] if number is None else _elements(number)
            return [None if element is None else _wanted(element, kind.element, element) for element in elements]
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            assert number is not None
            return int(number)
        case Kind.BOOLEAN:
            return {"t": True, "f": False}[text]
        case Kind.INT | Kind.LONG:
            return int(text)
        case Kind.FLOAT:
            return _bits(float(text), single=True)
        case Kind.DOUBLE:
            return _bits(float(text), single=False)
        case Kind.DECIMAL:
            return _digits(Decimal(text))
        case Kind.BINARY:
            return bytes.fromhex(text.removeprefix("\\x"))
        case _:
            return text


def _elements(text: str) -> list[str | None]:
    """The elements of an array or a vector, parsed character by character."""
    if text.startswith("["):
        return list(text[1:-1].split(","))
    elements: list[str | None] = []
    word, quoted, bare, position = "", False, True, 1
    while position < len(text):
        sign = text[position]
        if sign == "\\":
            position += 1
            word += text[position]
        elif sign == '"':
            quoted, bare = not quoted, False
        elif sign in ",}" and not quoted:
            if word or not bare or sign == "," or elements:
                elements.append(None if bare and word == "NULL" else word)
            word, bare = "", True
        else:
            word += sign
        position += 1
    return elements


def _digits(value: Decimal) -> str:
    """A number without trailing zeros: engines differ in how many they show."""
    text = format(value, "f")
    return "0" if value == 0 else text.rstrip("0").rstrip(".") if "." in text else text


def _bits(value: float, *, single: bool) -> str:
    """A float's bits, the same for every NaN."""
    return "NaN" if value != value else struct.pack(">f" if single else ">d", value).hex()


def lake_types(table: LakeTable) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema.fields}


def by_duckdb(
    location: str, types: dict[str, str], order: str = "ORDER BY id", duckdb: DuckDBPyConnection | None = None
) -> dict[str, list[Any]]:
    """The lake table's columns in comparable form, as DuckDB reads them; so are those of the other readers.

    `duckdb` is a connection to use; without one, each call loads DuckDB's extensions again.
    """
    forms = {
        "date": "({0} - DATE '1970-01-01')::bigint",
        "timestamp": "epoch_us({0})",
        "timestamptz": "epoch_us({0})",
    }
    lists = {f"list<{kind}>": "list_transform({0}, x -> " + form.format("x") + ")" for kind, form in forms.items()}
    selected = ", ".join(
        (forms | lists).get(kind, "{0}").format(f'"{name}"') + f' AS "{name}"' for name, kind in types.items()
    )
    if duckdb is None:
        return _comparable(read_duckdb(location, f"SELECT {selected} FROM lake {order}"), types)
    rows = duckdb.execute(f"SELECT {selected} FROM iceberg_scan('{location}') {order}").to_arrow_table()
    return _comparable(rows, types)


def by_spark(session: SparkSession, table: str, types: dict[str, str]) -> dict[str, list[Any]]:
    forms = {
        "date": "unix_date({0})",
        "timestamp": "unix_micros(CAST({0} AS timestamp))",
        "timestamptz": "unix_micros({0})",
    }
    lists = {f"list<{kind}>": "transform({0}, x -> " + form.format("x") + ")" for kind, form in forms.items()}
    selected = ", ".join(
        (forms | lists).get(kind, "{0}").format(f"`{name}`") + f" AS `{name}`" for name, kind in types.items()
    )
    rows = session.sql(f"SELECT {selected} FROM lake.public.{table} ORDER BY id").collect()
    return {name: [_plain(row[name], ColumnType.parse(kind)) for row in rows] for name, kind in types.items()}


def by_pyarrow(location: str, types: dict[str, str]) -> dict[str, list[Any]]:
    """The rows of the data files alone, since nothing was deleted."""
    parts = []
    for file in LakeTable.load(location, StorageOptions()).live_data_files():
        path = path_of(file.path)
        part = pq.read_table(path)
        missing = [name for name in types if name not in part.column_names]
        for name in missing:
            part = part.append_column(name, pa.nulls(part.num_rows, ColumnType.parse(types[name]).arrow))
        parts.append(part.select(list(types)))
    return _comparable(pa.concat_tables(parts, promote_options="permissive").sort_by("id"), types)


def _comparable(table: pa.Table, types: dict[str, str]) -> dict[str, list[Any]]:
    result = {}
    for name, kind in types.items():
        column = table.column(name)
        for arrow, number in ((pa.types.is_date32, pa.int32()), (pa.types.is_timestamp, pa.int64())):
            if arrow(column.type):
                column = column.cast(number)
            elif pa.types.is_list(column.type) and arrow(column.type.value_type):
                column = column.cast(pa.list_(number))
        result[name] = [_plain(value, ColumnType.parse(kind)) for value in column.to_pylist()]
    return result


def _plain(value: Any, kind: ColumnType) -> Any:
    """An engine's value in the form of `_wanted`."""
    if value is None:
        return None
    match kind.kind:
        case Kind.LIST:
            assert kind.element is not None
            return [_plain(element, kind.element) for element in value]
        case Kind.FLOAT:
            return _bits(value, single=True)
        case Kind.DOUBLE:
            return _bits(value, single=False)
        case Kind.DECIMAL:
            return _digits(value)
        case Kind.BINARY:
            return bytes(value)
        case Kind.UUID:
            return str(value)
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return int(value)
        case _:
            return value
