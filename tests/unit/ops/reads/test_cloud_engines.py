"""What `connect` prints for engines of a cloud, what it refuses, and that docs/cloud-engines/ says the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.document.snapshot_summary import SnapshotSummary
from mirror_pump.model import Column, MirroredTable
from mirror_pump.ops.reads.cloud_engines import CLOUD_ENGINES, READ_ON, CloudEngine, LakeNames, Way, cloud_statements
from mirror_pump.ops.reads.cloud_refusals import refuse_location, refuse_table, way_of
from mirror_pump.ops.reads.engine_remarks import engine_remarks
from tests.support.cloud_document import EXAMPLE, PAGES, parts, statement_parts, written
from tests.support.table_values import live_table

_PRINTED = [(engine, way) for engine in CLOUD_ENGINES.values() for way in engine.statements]
_HOSTILE = """Up\n-- "a"; `b` \\'c'\\ {uri} %s"""
_BACKSLASHES = r"""'(?:[^'\\]|\\.)*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`"""
_DOUBLED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*\""""


def skeleton(engine: CloudEngine, text: str) -> str:
    """The statements with a mark in place of each quoted name and text, as the engine reads them."""
    quoted = _DOUBLED if engine.engine in ("athena", "redshift") else _BACKSLASHES
    statements = re.sub(r"\A(?:--.*\n)*", "", text)
    return re.sub(quoted, "?", statements, flags=re.DOTALL)


def table_of(*kinds: Kind, **fields: Any) -> MirroredTable:
    columns = (
        Column(number, f"c{number}", 0, -1, kind.value, ColumnType(kind), number, number == 1)
        for number, kind in enumerate((Kind.LONG, *kinds), 1)
    )
    return live_table(tuple(columns), ("c1",), **fields)


def deletes(**totals: int) -> SnapshotSummary:
    return SnapshotSummary({f"total-{name}-deletes": str(rows) for name, rows in totals.items()})


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_pages_show_what_is_printed_and_when_it_was_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text) == text, "run `python -m tests.support.cloud_document`"
    assert READ_ON in text
    if page.stem != "index":
        assert "Not tried." in text
        sources = set(re.findall(r"^(\[\d+\]): https://", text, re.MULTILINE))
        assert sources, "no address of what was read"
        assert sources == set(re.findall(r"(?<=.)\[\d+\]", text))


def test_each_engine_has_a_page_with_its_statements() -> None:
    shown = [part for page in PAGES.glob("*.md") for part in parts(page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(["abilities", *(name for name, _, _ in statement_parts())])


@pytest.mark.parametrize(("engine", "way"), _PRINTED, ids=[f"{engine.engine}-{way.name}" for engine, way in _PRINTED])
def test_no_name_ends_its_quotes(engine: CloudEngine, way: Way) -> None:
    plain = cloud_statements(engine, way, EXAMPLE)
    hostile = LakeNames(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE)
    assert skeleton(engine, cloud_statements(engine, way, hostile)) == skeleton(engine, plain)
    assert all(line.startswith(("--", " ", "SELECT", "CREATE", "REFRESH")) for line in plain.splitlines())
    assert plain.endswith("LIMIT 10;")


def test_what_statements_name() -> None:
    """Glue has names in lower case, a table of BigQuery has the mirror's name as far as it can be one."""
    names = replace(EXAMPLE, namespace="Sales", table="Or.ders")
    by_engine = {engine.engine: cloud_statements(engine, way, names) for engine, way in reversed(_PRINTED)}
    assert 'lake."Sales"."Or.ders"' in by_engine["snowflake"]
    assert "lake.`sales`.`or.ders`" in by_engine["databricks"]
    assert '"AwsDataCatalog"."sales"."or.ders"' in by_engine["athena"]
    assert "DATABASE 'sales'" in by_engine["redshift"]
    for engine in ("databricks", "athena", "redshift"):
        assert f'register_table(("sales", "or.ders"), "{names.metadata_location}")' in by_engine[engine]
    assert ".`Or_ders`\n  WITH CONNECTION `<project>.<region>.<connection>`\n" in by_engine["bigquery"]
    assert f"uris = ['{names.metadata_location}']" in by_engine["bigquery"]
    files = cloud_statements(CLOUD_ENGINES["snowflake"], Way.FILE, names)
    assert "METADATA_FILE_PATH = 'public/orders/metadata/00042-f3a1.metadata.json'" in files


def test_the_way_is_that_of_the_address() -> None:
    snowflake, athena = CLOUD_ENGINES["snowflake"], CLOUD_ENGINES["athena"]
    assert way_of(snowflake, "https://lake.example.com/iceberg") is Way.REST
    assert way_of(snowflake, None) is Way.FILE
    assert way_of(athena, None) is Way.FILE
    with pytest.raises(UsageError, match="Athena attaches no REST catalog"):
        way_of(athena, "https://lake.example.com/iceberg")
    with pytest.raises(UsageError, match="has no TLS"):
        way_of(snowflake, "http://127.0.0.1:8181/iceberg")


@pytest.mark.parametrize("engine", CLOUD_ENGINES.values(), ids=lambda engine: engine.engine)
def test_a_lake_out_of_reach_is_refused(engine: CloudEngine) -> None:
    with pytest.raises(UsageError, match="does not reach the lake"):
        refuse_location(engine, "file:///lake", None)
    refuse_location(engine, "s3://lake", None)
    refuse_location(engine, "s3://lake", "https://s3.eu-central-1.amazonaws.com")
    for endpoint in ("http://127.0.0.1:9000", "https://amazonaws.com.example.org"):
        if engine.only_own_s3:
            with pytest.raises(UsageError, match="it reads AWS itself"):
                refuse_location(engine, "s3://lake", endpoint)
        else:
            refuse_location(engine, "s3://lake", endpoint)


@pytest.mark.parametrize(
    ("name", "table", "summary", "text", "remedy"),
    [
        ("athena", table_of(format_version=3), None, "format version 3", "--format-version 2"),
        ("redshift", table_of(Kind.VARIANT, format_version=3), None, "column c2 is a variant", "as text"),
        (
            "snowflake",
            table_of(),
            deletes(equality=1200),
            "1,200 equality deletes now",
            "mirror-pump maintain public.t",
        ),
        ("snowflake", table_of(format_version=3), deletes(equality=1), "1 equality deletes", "--index-memory"),
        ("databricks", table_of(), deletes(position=2), "2 position deletes", "policy set public.t format_version 3"),
    ],
)
def test_a_table_that_is_not_read_now_is_refused(
    name: str, table: MirroredTable, summary: SnapshotSummary | None, text: str, remedy: str
) -> None:
    with pytest.raises(TableError, match=text) as refusal:
        refuse_table(CLOUD_ENGINES[name], table, summary)
    assert remedy in str(refusal.value.remedy)


@pytest.mark.parametrize(
    ("name", "table", "summary"),
    [
        ("athena", table_of(), deletes(position=5, equality=5)),
        ("bigquery", table_of(Kind.UUID, format_version=3), deletes(position=5, equality=5)),
        ("snowflake", table_of(Kind.VARIANT, format_version=3), deletes(position=5)),
        ("databricks", table_of(format_version=3), deletes(position=5)),
        ("databricks", table_of(), deletes(position=0, equality=0)),
        ("databricks", table_of(), None),
    ],
)
def test_a_table_that_is_read_or_of_which_nothing_is_said_is_not_refused(
    name: str, table: MirroredTable, summary: SnapshotSummary | None
) -> None:
    refuse_table(CLOUD_ENGINES[name], table, summary)


def test_comments_say_what_may_come_and_which_columns_differ() -> None:
    table = table_of(Kind.STRING, Kind.UUID, Kind.STRING)
    assert "Amazon Redshift, c2, c4 of public.t: string loses what is beyond 16,384 characters, without an error" in (
        engine_remarks("redshift", table)
    )
    assert engine_remarks("bigquery", table) == ["BigQuery, c3 of public.t: uuid becomes BYTES"]
    assert any(remark.startswith("Snowflake refuses equality deletes") for remark in engine_remarks("snowflake", table))
    later = engine_remarks("databricks", replace(table, format_version=3))
    assert not any("refuses deletion vectors of" in remark for remark in later)
