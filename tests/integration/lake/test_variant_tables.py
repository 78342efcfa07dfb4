"""Variant columns in tables of the library and of Spark: each reads what the other wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue

from decoders.variant import document_texts, encoded_documents
from mirror_pump.errors import ForeignTable, UsageError
from mirror_pump.rest_catalog.catalog_requests import sent_document
from mirror_pump.rest_catalog.protocol import ProtocolError
from mirror_pump.rest_catalog.table_commits import CreateTableRequest, TableCommits, TableUpdates, UpdateTableRequest
from mirror_pump.tables.catalogs.lake_catalog import TableIdentifier
from mirror_pump.tables.catalogs.path_catalog import PathCatalog
from mirror_pump.tables.table.column_texts import schema_of
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENTS = ['{"b": [1, 2.50, true], "a": {"c": null}}', "null", None, '"x"', "12345678901234567890123456789012345678"]


def texts(table: Table, predicate: str = "id >= 0", columns: list[str] | None = None) -> dict[int, str | None]:
    rows = table.scan(predicate, columns).to_arrow()
    return dict(zip(rows["id"].to_pylist(), document_texts(rows["doc"].combine_chunks()).to_pylist(), strict=True))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = PathCatalog(tmp_path.as_uri())
    schema = schema_of(["id long not null", "doc variant", "note string"])
    table = Table.create(catalog, "db.t", schema, format_version=3)
    table.append(pa.table({"id": range(5), "doc": pa.array(DOCUMENTS)}))
    return table


EXPECTED = dict(enumerate(['{"a": {"c": null}, "b": [1, 2.50, true]}', *DOCUMENTS[1:]]))


def test_rows_are_appended_scanned_and_deleted(table: Table) -> None:
    assert texts(table) == EXPECTED
    assert texts(table, "doc is null") == {2: None}
    assert texts(table, "doc is not null and id < 2", columns=["doc", "id"]) == {key: EXPECTED[key] for key in (0, 1)}
    assert table.scan(columns=["doc"]).to_arrow().num_rows == 5
    field = table.scan().schema.field("doc")
    assert field.metadata[b"ARROW:extension:name"] == b"arrow.parquet.variant"
    # Variants as they come from a scan, and a file without the column.
    table.append(table.scan("id = 0").to_arrow().set_column(0, "id", pa.array([10])))
    table.append(pa.table({"id": [11], "note": ["none"]}))
    table.delete("doc is null and id < 5")
    assert texts(table) == {0: EXPECTED[0], 1: "null", 3: '"x"', 4: EXPECTED[4], 10: EXPECTED[0], 11: None}
    for predicate in ("doc = 'x'", "doc in ('x', 'y')", "doc > 5"):
        with pytest.raises(UsageError, match="variants do not compare"):
            table.scan(predicate)
    with pytest.raises(SchemaMismatch, match="no variant holds"):
        table.append(pa.table({"id": [1], "doc": ['{"a": 1, "a": 2}']}))
    with pytest.raises(SchemaMismatch):
        table.append(pa.table({"id": [1], "doc": [b"\x00"]}))


def test_files_are_committed_if_they_say_that_they_have_variants(table: Table) -> None:
    (file,) = table.scan().plan.paths
    rows = pq.read_table(file)
    copy = Path(file.removeprefix("file://")).parent / "copy.parquet"
    pq.write_table(rows, copy)
    with pytest.raises(SchemaMismatch):
        table.commit_append([str(copy)])
    copy.write_bytes(Path(file.removeprefix("file://")).read_bytes())
    table.commit_append([str(copy)])
    assert table.scan().to_arrow().num_rows == 10
    other = Table.create(PathCatalog(table.location.rpartition("/db/")[0]), "db.other", schema_of(["id long not null"]))
    target = Path(other.location.removeprefix("file://")) / "data"
    target.mkdir(exist_ok=True)
    (target / "x.parquet").write_bytes(copy.read_bytes())
    with pytest.raises(SchemaMismatch, match="format version 3"):
        other.commit_append([str(target / "x.parquet")])


def test_spark_and_the_library_read_each_other(table: Table, spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.lib", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set("spark.sql.catalog.lib.type", "hadoop")
    session.conf.set("spark.sql.catalog.lib.warehouse", tmp_path.as_uri())
    session.conf.set("spark.sql.catalog.lib.cache-enabled", "false")
    rows = session.sql("SELECT id, to_json(doc), doc IS NULL, variant_get(doc, '$.b[1]', 'decimal(5,2)') FROM lib.db.t")
    assert sorted((row[0], row[1], row[2]) for row in rows.collect()) == [
        (0, '{"a":{"c":null},"b":[1,2.5,true]}', False),
        (1, "null", False),
        (2, None, True),
        (3, '"x"', False),
        (4, EXPECTED[4], False),
    ]
    written = """SELECT 20L AS id, parse_json('{"z": [1, -2.5e-3], "a": "é"}') AS doc, 'n' AS note"""
    session.sql(f"INSERT INTO lib.db.t {written}")
    session.sql("INSERT INTO lib.db.t VALUES (21, parse_json('null'), NULL), (22, NULL, NULL)")
    session.sql("UPDATE lib.db.t SET note = 'u' WHERE id = 0")
    session.sql("CALL lib.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))").collect()
    table.refresh()
    assert texts(table) == EXPECTED | {20: '{"a": "é", "z": [1, -0.0025]}', 21: "null", 22: None}
    assert texts(table, "doc is null") == {2: None, 22: None}
    table.append(pa.table({"id": [30], "doc": [EXPECTED[0]]}))
    assert session.sql("SELECT variant_get(doc, '$.b[0]', 'int') FROM lib.db.t WHERE id = 30").collect() == [(1,)]
    session.sql("ALTER TABLE lib.db.t SET TBLPROPERTIES ('write.parquet.shred-variants' = 'true')")
    session.sql(f"INSERT INTO lib.db.t {written.replace('20L', 'id')} FROM range(40, 60)")
    table.refresh()
    assert table.scan("id >= 40", columns=["id"]).to_arrow().num_rows == 20
    with pytest.raises(ForeignTable, match="shredded"):
        table.scan().to_arrow()


def test_structs_are_variants(table: Table) -> None:
    documents, _ = encoded_documents(pa.array(["[5]", None]))
    table.append(pa.table({"id": [50, 51], "doc": documents}))
    assert texts(table, "id >= 50") == {50: "[5]", 51: None}


def test_clients_of_the_rest_catalog_make_and_change_tables(tmp_path: Path) -> None:
    catalog = PathCatalog(tmp_path.as_uri())
    commits = TableCommits(catalog)
    name = TableIdentifier("db", "made")
    column: JsonValue = {"id": 1, "name": "id", "type": "long", "required": True}
    request: dict[str, JsonValue] = {
        "name": "made",
        "schema": {"type": "struct", "fields": [column]},
        "properties": {"format-version": "3"},
    }
    commits.create(name, commits.prepared(name, sent_document(CreateTableRequest, request)))
    fields: JsonValue = [column, {"id": 2, "name": "doc", "type": "variant", "required": False}]
    schema: JsonValue = {"type": "struct", "schema-id": 1, "fields": fields}
    updates: list[JsonValue] = [
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    properties: list[JsonValue] = [{"action": "set-properties", "updates": {"a": "b"}}]
    for changes in (updates, properties):
        update = sent_document(UpdateTableRequest, {"requirements": [], "updates": changes})
        commits.commit([TableUpdates(name, update)])
    table = Table.open(catalog, name)
    assert str(table.schema.find_field("doc").field_type) == "variant"
    assert table.metadata.properties["a"] == "b"
    table.append(pa.table({"id": [1], "doc": ["[1]"]}))
    assert texts(table) == {1: "[1]"}
    made: dict[str, JsonValue] = {**request, "name": "other", "schema": schema}
    table_metadata = commits.prepared(TableIdentifier("db", "other"), sent_document(CreateTableRequest, made))
    assert table_metadata.schema_documents[0]["fields"][1]["type"] == "variant"
    with pytest.raises(ProtocolError, match="variant"):
        commits.prepared(name, sent_document(CreateTableRequest, {**made, "properties": {"format-version": "2"}}))
