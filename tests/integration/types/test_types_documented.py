"""docs/types.md, compared with the code and a server: no type is missing, and each is mapped as documented."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from decoders.columns import ColumnType
from mirror_pump.errors import TableError
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.column_choices import ColumnChoices, chosen
from mirror_pump.source.relations.relations import describe, resolve_name
from mirror_pump.testing.database import Database
from tests.support.users_tables import connect_as_user

DOCUMENT = Path(__file__).parents[3] / "docs" / "types.md"


def tables() -> list[list[list[str]]]:
    """The document's tables, each as rows of cells, without their headings."""
    found: list[list[list[str]]] = []
    for is_table, lines in itertools.groupby(DOCUMENT.read_text().splitlines(), lambda line: line.startswith("|")):
        if is_table:
            found.append([[cell.strip() for cell in line.strip("|").split("|")] for line in list(lines)[2:]])
    return found


MAPPING, OTHERS, RAW, CHOICES = tables()


def documented() -> Iterator[tuple[str, str, bool]]:
    """Each type of the first table, its Iceberg type, and whether it may need a raw text column."""
    for types, lake, raw_text, _ in MAPPING:
        assert raw_text in ("yes", "no")
        for name in re.findall("`([^`]+)`", types):
            yield name, lake.strip("`"), raw_text == "yes"


@pytest.fixture
def connection(database: Database) -> Iterator[PgConnection]:
    with connect_as_user(database.dsn) as connection:
        yield connection


def lake_types(connection: PgConnection, types: list[str]) -> dict[str, ColumnType]:
    """The lake types of these types, by their names."""
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(types))
    connection.execute(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns})".encode())
    found = describe(connection, resolve_name(connection, "every_type")[1]).columns[1:]
    return {name: column.type for name, column in zip(types, found, strict=True)}


def test_every_row_is_true(connection: PgConnection) -> None:
    wanted = {name: (lake, raw_text) for name, lake, raw_text in documented()}
    found = lake_types(connection, list(wanted))
    assert {name: (str(type_), not type_.holds_all) for name, type_ in found.items()} == wanted


def test_no_type_of_the_server_is_missing(connection: PgConnection) -> None:
    present = {
        name
        for (name,) in connection.execute(
            "SELECT format_type(oid, NULL) FROM pg_type t WHERE typnamespace = 'pg_catalog'::regnamespace"
            " AND typtype IN ('b', 'r', 'm') AND typcategory <> 'A'"
        )
    }
    # The array types of the category with single elements; they are written like any other type.
    vectors = {"int2vector", "oidvector"}
    known = {
        connection.execute("SELECT format_type(%s::regtype, NULL)", (name,)).fetchall()[0][0]
        for name, _, _ in documented()
        if not name.endswith("[]")
    }
    assert known == present | vectors


def test_arrays_are_lists_of_their_element(connection: PgConnection) -> None:
    own = {name: lake for name, lake, _ in documented()}
    (without_arrays,) = (set(re.findall("`([^`]+)`", row[0])) for row in MAPPING if row[3] == "have no arrays")
    elements = [name for name in own if not name.endswith("[]") and name not in without_arrays]
    found = lake_types(connection, [f"{name}[]" for name in elements])
    for name in elements:
        assert str(found[f"{name}[]"]) == own.get(f"{name}[]", f"list<{own[name]}>"), name


def test_what_may_be_chosen(connection: PgConnection) -> None:
    """Of all pairs, exactly those that the document names are allowed."""
    targets = [
        ColumnType.parse(kind) for kind in ("string", "long", "decimal(9,3)", "list<string>", "list<decimal(9,3)>")
    ]
    targets += [ColumnType.parse(kind) for kind in ("int", "double", "timestamp", "list<long>", "variant")]
    scalars = {"numeric": "decimal(9,3)", "numeric(5,-2)": "decimal(9,3)", "int2": "long decimal(9,3)"}
    scalars |= {"int4": "long decimal(9,3)", "int8": "decimal(9,3)", "oid": "decimal(9,3)"}
    scalars |= {"text": "", "float8": "", "date": "", "boolean": "", "money": ""}
    documents = ("json", "jsonb", "object")
    assert [row[0] for row in CHOICES] == [
        "any type", "`numeric`, and domains over it", "`int2`, `int4`", "`int8`, `oid`", "an array",
        "`json`, `jsonb`, and domains over them",
    ]  # fmt: skip
    allowed = {name: {"string", *more.split()} for name, more in scalars.items()}
    for name, more in scalars.items():
        allowed[f"{name}[]"] = {"string", "list<string>", *(f"list<{kind}>" for kind in more.split())}
    allowed["positive"] = allowed["numeric"]
    allowed |= {name: {"string", "variant"} for name in documents} | {"jsonb[]": {"string", "list<string>"}}
    connection.execute("CREATE DOMAIN positive AS numeric CHECK (value > 0)")
    connection.execute("CREATE DOMAIN object AS jsonb")
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(allowed))
    connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
    description = describe(connection, resolve_name(connection, "t")[1])
    for n, name in enumerate(allowed):
        own = description.columns[n + 1].type
        for target in targets:
            accepted = True
            try:
                chosen(connection, description, ColumnChoices({f"c{n}": target}))
            except TableError:
                accepted = False
            assert accepted == (target == own or str(target) in allowed[name]), (name, str(target))


def test_the_other_tables_name_what_the_tests_try() -> None:
    assert [row[0].split()[0] for row in RAW] == ["decimal", "date", "timestamp,", "list", "variant"]
    assert [row[0].split()[1] for row in OTHERS] == ["domain,", "enum", "composite", "`halfvec`", "other"]
