"""Catalogs of tables that are not mirrored, served for reading and for writing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.types import StringType

from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.catalogs.lake_catalog import PointerChange, StoredCatalog, TableIdentifier, TableMoved
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.mirror import await_true, lake_rows
from mirror_pump.testing.program import Program
from tests.support.catalog_kinds import KINDS, ROWS, TRANSACTIONS, rows
from tests.support.local_files import path_of
from tests.support.rest_catalog import ServedMirror, documented_blocks, serving

_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}


@pytest.fixture
def memory(tmp_path: Path) -> MemoryCatalog:
    return MemoryCatalog(tmp_path.as_uri(), StorageOptions(fsync=False))


def ids(table: Table) -> list[int]:
    """Those of its rows, read from the metadata file that the catalog names."""
    return sorted(row[0] for row in lake_rows(table.refresh().metadata_location))


def test_every_kind_of_catalog_is_read_by_engines(catalogs: Mapping[str, StoredCatalog]) -> None:
    """The newest state with each load, as the catalog has it, and nothing is written."""
    tables = {}
    for kind, catalog in catalogs.items():
        tables[kind] = Table.create(catalog, "shop.eu.orders", ROWS)
        tables[kind].append(rows(1, 2))
    with (
        serving(*(LakeCatalogSource(kind, catalog) for kind, catalog in catalogs.items())) as server,
        open_duckdb("httpfs") as duckdb,
    ):
        assert server.ask("/v1/config").document["overrides"] == {"prefix": KINDS[0]}
        for kind, table in tables.items():
            client = server.pyiceberg(kind)
            assert client.list_namespaces() == [("shop",)]
            assert client.list_namespaces("shop") == [("shop", "eu")]
            assert client.list_tables(("shop", "eu")) == [("shop", "eu", "orders")]
            assert client.list_tables("shop") == []
            loaded = client.load_table(("shop", "eu", "orders"))
            assert loaded.metadata_location == table.metadata_location
            assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [1, 2]
            server.attach_in(duckdb, kind, f"lake_{kind}")
            query = f'SELECT id FROM lake_{kind}."shop.eu".orders ORDER BY 1'
            assert duckdb.execute(query).fetchall() == [(1,), (2,)]
            table.append(rows(3))
            assert client.load_table(("shop", "eu", "orders")).scan().to_arrow().num_rows == 3
            with pytest.raises(NoSuchTableError):
                client.load_table(("shop", "eu", "nothing"))
            for method, path in (("POST", "/tables/orders"), ("DELETE", "/tables/orders"), ("POST", "/tables")):
                code, _, message = server.ask(f"/v1/{kind}/namespaces/shop%1Feu{path}", method, "{}").error
                assert code == 403
                assert "--read-write" in message
        assert all(ids(table) == [1, 2, 3] for table in tables.values())


@pytest.mark.parametrize("kind", KINDS)
def test_pyiceberg_creates_tables_and_writes_to_them(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    client = writable.pyiceberg(kind)
    client.create_namespace("own")
    made = client.create_table("own.t", ROWS, properties={"commit.retry.num-retries": "0"})
    made.append(rows(1))
    table = Table.open(catalogs[kind], "own.t")
    assert ids(table) == [1]
    table.append(rows(2))
    stale = client.load_table("own.t")
    table.append(rows(3))
    with pytest.raises(CommitFailedException):
        stale.append(rows(9))
    assert ids(table) == [1, 2, 3]
    with client.load_table("own.t").update_schema() as update:
        update.add_column("more", StringType())
    assert [field.name for field in table.refresh().schema.fields] == ["id", "name", "more"]
    with client.load_table("own.t").transaction() as begun:
        begun.delete("id = 1")
        begun.set_properties(owner="somebody")
    assert ids(table) == [2, 3]
    assert table.metadata.properties["owner"] == "somebody"
    client.drop_table("own.t")
    assert catalogs[kind].load(TableIdentifier("own", "t")) is None
    client.create_table("own.t", ROWS)
    assert client.load_table("own.t").scan().to_arrow().num_rows == 0


@pytest.mark.parametrize("kind", ["sqlite", "log"])
def test_duckdb_creates_tables_and_writes_to_them(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    with open_duckdb("httpfs") as duckdb:
        writable.attach_in(duckdb, kind, "lake")
        duckdb.execute("CREATE SCHEMA lake.ducks")
        duckdb.execute("CREATE TABLE lake.ducks.a (id bigint); CREATE TABLE lake.ducks.b (id bigint)")
        duckdb.execute("INSERT INTO lake.ducks.a VALUES (1), (2)")
        duckdb.execute("BEGIN; INSERT INTO lake.ducks.a VALUES (3); INSERT INTO lake.ducks.b VALUES (3); COMMIT")
        assert duckdb.execute("SELECT id FROM lake.ducks.a ORDER BY 1").fetchall() == [(1,), (2,), (3,)]
    assert ids(Table.open(catalogs[kind], "ducks.a")) == [1, 2, 3]
    assert ids(Table.open(catalogs[kind], "ducks.b")) == [3]


_REQUIREMENTS: Sequence[Mapping[str, Any]] = (
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": "11111111-1111-1111-1111-111111111111"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-ref-snapshot-id", "ref": "other", "snapshot-id": 7},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 77},
    {"type": "assert-current-schema-id", "current-schema-id": 77},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 77},
    {"type": "assert-default-spec-id", "default-spec-id": 77},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 77},
)


def change(**properties: str) -> list[Mapping[str, Any]]:
    return [{"action": "set-properties", "updates": properties}]


def test_a_requirement_that_is_not_met_changes_nothing(memory: MemoryCatalog) -> None:
    table = Table.create(memory, "s.t", ROWS)
    other = Table.create(memory, "s.u", ROWS)
    before = dict(memory.pointers())
    with serving(LakeCatalogSource("lake", memory, read_write=True)) as server:
        for requirement in _REQUIREMENTS:
            body = json.dumps({"requirements": [requirement], "updates": change(a="b")})
            assert server.ask("/v1/lake/namespaces/s/tables/t", "POST", body).error[:2] == (
                409,
                "CommitFailedException",
            ), requirement
        met = {"type": "assert-table-uuid", "uuid": table.metadata.table_uuid}
        both = [
            {"identifier": {"namespace": ["s"], "name": name}, "requirements": [needed], "updates": change(a="b")}
            for name, needed in (("t", met), ("u", _REQUIREMENTS[2]))
        ]
        transaction = "/v1/lake/transactions/commit"
        assert server.ask(transaction, "POST", json.dumps({"table-changes": both})).error[0] == 409
        assert memory.pointers() == before
        both[1]["requirements"] = [{"type": "assert-table-uuid", "uuid": other.metadata.table_uuid}]
        assert server.ask(transaction, "POST", json.dumps({"table-changes": both})).status == 204
        assert server.ask(transaction, "POST", json.dumps({"table-changes": both * 2})).error[0] == 400
    assert table.refresh().metadata.properties["a"] == other.refresh().metadata.properties["a"] == "b"


@pytest.mark.parametrize("kind", ["path", *TRANSACTIONS])
def test_changes_that_do_not_exclude_each_other_all_happen(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    """The server repeats the attempt of a client that another one overtook, with its requirements looked at again."""
    table = Table.create(catalogs[kind], "race.t", ROWS)

    def send(number: int) -> int:
        needed = {"type": "assert-table-uuid", "uuid": table.metadata.table_uuid}
        body = {"requirements": [needed], "updates": change(**{f"n{number}": "x"})}
        return writable.ask(f"/v1/{kind}/namespaces/race/tables/t", "POST", json.dumps(body)).status

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(send, range(12))) == {200}
    assert {f"n{number}" for number in range(12)} <= table.refresh().metadata.properties.keys()


class _Overtaken(MemoryCatalog):
    """Before the first swap of a change, somebody else appends."""

    def __init__(self, warehouse: str) -> None:
        super().__init__(warehouse, StorageOptions(fsync=False))
        self.others: list[Table] = []
        self.conflicts = 0

    def commit(self, changes: Sequence[PointerChange]) -> Any:
        if self.others:
            self.others.pop().append(rows(5))
        try:
            return super().commit(changes)
        except TableMoved:
            self.conflicts += 1
            raise


def test_requirements_are_looked_at_again_after_somebody_else_came_first(tmp_path: Path) -> None:
    """What the client required of the snapshot no longer holds, so its commit would take the append away."""
    catalog = _Overtaken(tmp_path.as_uri())
    table = Table.create(catalog, "s.t", ROWS)
    snapshot = table.metadata.current_snapshot_id
    with serving(LakeCatalogSource("lake", catalog, read_write=True)) as server:
        catalog.others = [table]
        needed = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": snapshot}
        body = json.dumps({"requirements": [needed], "updates": change(a="b")})
        assert server.ask("/v1/lake/namespaces/s/tables/t", "POST", body).error[:2] == (409, "CommitFailedException")
    assert catalog.conflicts == 1
    assert ids(table) == [5]
    assert "a" not in table.metadata.properties


def test_what_another_engine_put_into_the_metadata_stays(memory: MemoryCatalog) -> None:
    table = Table.create(memory, "s.t", ROWS)
    pointer = memory.load(TableIdentifier("s", "t"))
    document = {**table.metadata.document, "x-engine": {"kept": True}}
    memory.commit([PointerChange(table.identifier, pointer, TableMetadata(document))])
    with serving(LakeCatalogSource("lake", memory, read_write=True)) as server:
        answer = server.send("/v1/lake/namespaces/s/tables/t", "POST", json.dumps({"updates": change(a="b")})).document
    stored = read_any_version(answer["metadata-location"], memory.storage)
    assert stored.document["x-engine"] == {"kept": True}
    assert stored.document == answer["metadata"]
    assert stored.former_locations[-1] != answer["metadata-location"]
    assert table.refresh().metadata.properties["a"] == "b"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"location": "file:///tmp/elsewhere"}, "is not in"),
        ({"properties": {"write.metadata.path": "file:///tmp/elsewhere"}}, "write.metadata.path"),
        ({"properties": {"format-version": "4"}}, "format version: 4"),
        ({"name": "../up"}, "not the name of a table"),
        ({"name": "_hidden"}, "not the name of a table"),
        ({"name": ""}, "not the name of a table"),
        ({"schema": {"type": "struct", "fields": [{"id": 1, "name": "x", "required": True, "type": "odd"}]}}, ""),
        ({"schema": None}, "cannot be understood"),
    ],
)
def test_no_client_makes_the_server_write_elsewhere(
    memory: MemoryCatalog, tmp_path: Path, changed: Mapping[str, Any], text: str
) -> None:
    with serving(LakeCatalogSource("lake", memory, read_write=True)) as server:
        assert server.ask("/v1/lake/namespaces", "POST", json.dumps({"namespace": ["s"]})).status == 200
        assert server.ask("/v1/lake/namespaces", "POST", json.dumps({"namespace": ["s"]})).error[0] == 409
        body = json.dumps({"name": "t", "schema": _SCHEMA, **changed})
        code, _, message = server.ask("/v1/lake/namespaces/s/tables", "POST", body).error
        assert code == 400, message
        assert text in message
        assert list(tmp_path.rglob("*")) == []
        Table.create(memory, "s.t", ROWS)
        before = dict(memory.pointers())
        moved = [{"action": "set-location", "location": "file:///tmp/elsewhere"}]
        for updates in (moved, change(**{"write.metadata.path": "file:///tmp/x"}), [{"action": "no-such"}]):
            sent = json.dumps({"updates": updates})
            assert server.ask("/v1/lake/namespaces/s/tables/t", "POST", sent).error[0] == 400
        assert server.ask("/v1/lake/namespaces/s/tables/t", "POST", "no JSON").error[0] == 400
        assert server.ask("/v1/lake/namespaces/s/tables/u", "POST", json.dumps({"updates": []})).error[0] == 404
        assert server.ask("/v1/lake/views/rename", "POST", "{}").error[0] == 501
    assert memory.pointers() == before


def test_clients_make_tables_of_format_version_3(memory: MemoryCatalog) -> None:
    """At once, by a transaction, and of one of version 2; and row IDs are assigned once."""
    column = {"id": 1, "name": "id", "required": True, "type": "int", "initial-default": 12, "write-default": 10}
    with serving(LakeCatalogSource("lake", memory, read_write=True)) as server:
        server.ask("/v1/lake/namespaces", "POST", json.dumps({"namespace": ["s"]}))
        path = "/v1/lake/namespaces/s/tables"
        third = {"properties": {"format-version": "3"}}
        schema = {**_SCHEMA, "fields": [column]}
        metadata = server.ask(path, "POST", json.dumps({"name": "t", "schema": schema, **third})).document["metadata"]
        assert (metadata["format-version"], metadata["next-row-id"]) == (3, 0)
        assert metadata["schemas"][0]["fields"] == [column]
        staged = server.ask(path, "POST", json.dumps({"name": "u", "schema": schema, **third, "stage-create": True}))
        made = staged.document["metadata"]
        updates = [
            {"action": "assign-uuid", "uuid": made["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": 3},
            {"action": "add-schema", "schema": made["schemas"][0], "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": made["location"]},
        ]
        commit = json.dumps({"requirements": [{"type": "assert-create"}], "updates": updates})
        committed = server.ask(f"{path}/u", "POST", commit).document["metadata"]
        assert (committed["format-version"], committed["next-row-id"]) == (3, 0)
        assert committed["schemas"][0]["fields"] == [column]
        assert Table.open(memory, "s.u").metadata.format_version == 3
        old = Table.create(memory, "s.v", ROWS)
        old.append(rows(1, 2))
        upgrade = [{"action": "upgrade-format-version", "format-version": 3}]
        server.ask(f"{path}/v", "POST", json.dumps({"updates": upgrade}))
        assert old.refresh().metadata.format_version == 3
        assert server.ask(f"{path}/v", "POST", json.dumps({"updates": upgrade})).status == 200
        old.append(rows(3))
        assert old.metadata.next_row_id == 3
        before = old.metadata.current_snapshot
        assert before is not None
        stale = {
            **before.document,
            "snapshot-id": 77,
            "sequence-number": before.sequence_number + 1,
            "first-row-id": 0,
            "added-rows": 1,
        }
        added = json.dumps({"updates": [{"action": "add-snapshot", "snapshot": stale}]})
        code, _, message = server.ask(f"{path}/v", "POST", added).error
        assert (code, "assigned concurrently" in message) == (409, True), message
        assert server.ask(f"{path}/v", "POST", added.replace('"first-row-id": 0', '"first-row-id": 3')).status == 200
        assert old.refresh().metadata.next_row_id == 4
        back = [{"action": "upgrade-format-version", "format-version": 2}]
        assert server.ask(f"{path}/v", "POST", json.dumps({"updates": back})).error[0] == 400


def test_a_table_that_is_prepared_exists_once_it_is_committed(memory: MemoryCatalog, tmp_path: Path) -> None:
    with serving(LakeCatalogSource("lake", memory, read_write=True)) as server:
        server.ask("/v1/lake/namespaces", "POST", json.dumps({"namespace": ["s", "deep"]}))
        path = "/v1/lake/namespaces/s%1Fdeep/tables"
        body = json.dumps({"name": "t", "schema": _SCHEMA, "stage-create": True})
        staged = server.ask(path, "POST", body).document
        assert "metadata-location" not in staged
        assert server.ask(f"{path}/t").error[0] == 404
        assert list(tmp_path.rglob("*")) == []
        metadata = staged["metadata"]
        updates = [
            {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "add-schema", "schema": metadata["schemas"][0], "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": metadata["location"]},
        ]
        commit = json.dumps({"requirements": [{"type": "assert-create"}], "updates": updates})
        assert server.ask(f"{path}/t", "POST", commit).document["metadata"]["table-uuid"] == metadata["table-uuid"]
        assert server.ask(f"{path}/t", "POST", commit).error[0] == 409
        assert server.ask(path, "POST", body).error[:2] == (409, "AlreadyExistsException")
        location = path_of(metadata["location"])
        assert server.ask(f"{path}/t?purgeRequested=true", "DELETE").status == 204
        assert [found for found in Path(location).rglob("*") if found.is_file()] == []


def test_the_program_serves_a_directory_without_a_database(tmp_path: Path) -> None:
    from mirror_pump.tables.catalogs.transaction_log import path_catalog

    lake = tmp_path / "lake"
    lake.mkdir()
    table = Table.create(
        path_catalog(lake.as_uri(), StorageOptions(fsync=False)), "s.t", pa.schema([("id", pa.int64())])
    )
    table.append(pa.table({"id": [1, 2, 3]}))
    program = Program("", tmp_path, {})
    (command,) = documented_blocks("sh", "## Tables that are not mirrored\n")
    _, *arguments = shlex.split(command.replace("path:/srv/lake", f"own=path:{lake}"))
    process = program.start(*arguments, "--read-write", "--listen", "127.0.0.1:0", log="serve.log")
    log = tmp_path / "serve.log"
    try:
        await_true(lambda: "/iceberg (" in log.read_text() or process.poll() is not None, 60, "the program serves")
        assert process.poll() is None, log.read_text()
        server = ServedMirror(int(log.read_text().partition("/iceberg (")[0].rpartition(":")[2]))
        assert "`own`" in log.read_text()
        client = server.pyiceberg("own")
        client.load_table("s.t").append(pa.table({"id": [4]}))
        assert ids(table) == [1, 2, 3, 4]
        program.stop(process)
    finally:
        program.kill(process)
