"""Tables without a server in a real object store: every command, orphans, clients of the catalog, and a way to the
store on which commits would overwrite each other."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem
from typer.testing import CliRunner, Result

from mirror_pump.cli.main import app
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.settings.config import Settings
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.tables.catalogs.transaction_log import path_catalog
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.mirror import await_true
from tests.support.catalog_kinds import ROWS, rows
from tests.support.cli import PROGRAM
from tests.support.rest_catalog import serving
from tests.support.s3_faults import FaultyStorage
from tests.support.s3_storage import BUCKET, REGION, ObjectStore

NAME = "sales.orders"
HOUR = 3600.0


@dataclass(frozen=True)
class Bucket:
    """A part of the object store of which nobody else knows."""

    store: ObjectStore
    prefix: str

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def _keys(self) -> tuple[str, str]:
        return next(iter(self.store.secrets.items()))

    def environment(self, endpoint: str) -> Mapping[str, str]:
        """Settings with which commands reach it."""
        settings = self.store.settings(endpoint)
        return Settings.model_validate(settings).environment([*settings])

    def catalog(self, *, transactions: bool = False) -> StoredCatalog:
        """As another program has it."""
        key, secret = self._keys
        properties = {
            "s3.endpoint": self.store.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": key,
            "s3.secret-access-key": secret,
        }
        return path_catalog(self.uri, StorageOptions(properties), transactions=transactions)

    @property
    def files(self) -> S3FileSystem:
        key, secret = self._keys
        return S3FileSystem(access_key=key, secret_key=secret, endpoint_override=self.store.endpoint, region=REGION)

    def put(self, path: str, content: bytes) -> str:
        """Writes an object. Returns its URI."""
        with self.files.open_output_stream(f"{BUCKET}/{self.prefix}/{path}") as stream:
            stream.write(content)
        return f"{self.uri}/{path}"

    def content(self) -> dict[str, float]:
        """When each object was written, by its URI."""
        found = self.files.get_file_info(FileSelector(f"{BUCKET}/{self.prefix}", recursive=True, allow_not_found=True))
        return {f"s3://{info.path}": info.mtime_ns / 1e9 for info in found if info.type == FileType.File}


@pytest.fixture
def bucket(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Commands reach it by their environment."""
    made = Bucket(store, f"lake-{os.urandom(4).hex()}")
    monkeypatch.delenv("MIRROR_PUMP_DSN", raising=False)
    for name, value in made.environment(store.endpoint).items():
        monkeypatch.setenv(name, value)
    return made


def lake(bucket: Bucket, verb: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["lake", verb, NAME, "--catalog", bucket.uri, *arguments])


def done(result: Result) -> Any:
    """The JSON that a command printed."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout) if result.stdout.startswith("{") else None


def parquet(*numbers: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": numbers, "name": [f"n{number}" for number in numbers]}, ROWS), sink)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["path", "log"])
def test_every_command_works_in_a_bucket(bucket: Bucket, kind: str) -> None:
    columns = ("--column", "id long not null", "--column", "name string")
    made = done(lake(bucket, "init", *columns, "--json", *(["--transactions"] if kind == "log" else [])))
    assert made["location"] == f"{bucket.uri}/sales/orders"
    files = [bucket.put(f"sales/orders/data/{number}.parquet", parquet(number)) for number in range(3)]
    done(lake(bucket, "commit", *files[:2]))
    committed = done(lake(bucket, "commit", files[2], "--remove", files[0], "--json"))
    info = done(lake(bucket, "info", "--json"))
    assert (info["snapshots"], info["metadata_location"]) == (3, committed["metadata_location"])
    assert len(done(lake(bucket, "history", "--json"))["snapshots"]) == 3
    listed = done(lake(bucket, "files", "--json"))
    assert {file["path"] for file in listed["files"]} == set(files[1:])
    planned = done(lake(bucket, "plan", "--where", "id = 2", "--json"))
    assert [file["path"] for file in planned["files"]] == [files[2]]
    assert done(lake(bucket, "gc", "--json"))["files"] == []
    assert (f"{bucket.uri}/_transactions/{0:020d}.json" in bucket.content()) == (kind == "log")
    assert not [name for name in bucket.content() if name.endswith(".probe")]
    assert lake(bucket, "init", *columns).exit_code == 1, "it is there"


def test_gc_in_a_bucket_spares_what_another_process_commits_meanwhile(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage's clock says how old objects are: the collector's own is held still, an hour after a young orphan."""
    table = Table.create(bucket.catalog(), NAME, ROWS)
    table.append(rows(1))
    before = set(bucket.content())
    orphans = {
        bucket.put("sales/orders/data/orphan.parquet", parquet(7)),
        bucket.put("sales/orders/metadata/0a1b-m0.avro", b"x"),
    }
    late = bucket.put("sales/orders/data/late.parquet", parquet(8))
    aged = max(bucket.content().values())

    def young_is_younger() -> bool:
        written = bucket.put("sales/orders/data/young.parquet", parquet(9))
        return bucket.content()[written] > aged

    await_true(young_is_younger, 60, "the storage's clock goes on")
    young = f"{table.location}/data/young.parquet"
    now = bucket.content()[young] + HOUR
    commits: list[int] = []
    refresh = Table.refresh

    def overtaken(collected: Table) -> Table:
        """The files are listed, and the newest metadata is yet to be read."""
        if not commits:
            command = [*PROGRAM, "lake", "commit", NAME, "--catalog", bucket.uri, late]
            commits.append(subprocess.run(command, check=False, timeout=300).returncode)
        return refresh(collected)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "refresh", overtaken)
        patched.setattr("time.time", lambda: now)
        removed = done(lake(bucket, "gc", "--older-than", "1h", "--yes", "--json"))
    assert commits == [0]
    assert {file["path"] for file in removed["files"]} == orphans
    left = set(bucket.content())
    assert left >= before | {late, young}
    assert not left & orphans
    again = Table.open(bucket.catalog(), NAME)
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [1, 8]
    for snapshot in again.history():
        again.scan(snapshot_id=snapshot.snapshot_id).to_arrow()


@pytest.mark.parametrize("kind", ["path", "log"])
def test_a_way_to_the_store_that_loses_the_condition_is_noticed(
    bucket: Bucket, faulty: FaultyStorage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The tables are there already, made by a way that keeps it: nothing is overwritten, and nothing is left behind."""
    table = Table.create(bucket.catalog(transactions=kind == "log"), NAME, ROWS)
    table.append(rows(1))
    late = bucket.put("sales/orders/data/late.parquet", parquet(8))
    before = bucket.content()
    files = bucket.files

    def overwrite(key: str, content: bytes) -> None:
        with files.open_output_stream(key) as stream:
            stream.write(content)

    faulty.overwrite = overwrite
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_ENDPOINT", faulty.endpoint)
    assert lake(bucket, "files").exit_code == 0, "it can be read"
    for verb, arguments in (("commit", [late]), ("init", ["--column", "id long"])):
        name = NAME if verb == "commit" else "sales.other"
        result = CliRunner().invoke(app, ["lake", verb, name, "--catalog", bucket.uri, *arguments])
        assert result.exit_code == 1, result.output
        assert "ignores If-None-Match" in result.stderr
        assert "use a store with conditional writes" in result.stderr
    assert bucket.content() == before
    new = CliRunner().invoke(
        app, ["lake", "init", NAME, "--catalog", f"{bucket.uri}/new", "--transactions", "--column", "id long"]
    )
    assert (new.exit_code, "ignores If-None-Match" in new.stderr) == (1, True)
    assert bucket.content() == before
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_ENDPOINT", bucket.store.endpoint)
    done(lake(bucket, "commit", late))
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 8]


@pytest.mark.parametrize("kind", ["path", "log"])
def test_clients_of_the_catalog_write_to_a_bucket(bucket: Bucket, kind: str) -> None:
    """They are given nothing but the catalog's URI, and the credentials by it."""
    catalog = bucket.catalog(transactions=kind == "log")
    with serving(LakeCatalogSource("lake", catalog, read_write=True), vends=True) as server:
        client = server.pyiceberg("lake")
        client.create_namespace("empty")
        client.create_namespace("sales")
        made = client.create_table(NAME, ROWS)
        made.append(rows(1, 2))
        table = Table.open(bucket.catalog(), NAME)
        table.append(rows(3))
        client.load_table(NAME).delete("id = 1")
        with client.create_table_transaction("sales.prepared", ROWS) as begun:
            begun.append(rows(4))
        assert sorted(client.load_table(NAME).scan().to_arrow()["id"].to_pylist()) == [2, 3]
        with server.duckdb("lake", delegates=True) as duckdb:
            assert duckdb.execute("SELECT id FROM lake.sales.orders ORDER BY 1").fetchall() == [(2,), (3,)]
            assert duckdb.execute("SELECT id FROM lake.sales.prepared").fetchall() == [(4,)]
        assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [2, 3]
        client.drop_table("sales.prepared", purge_requested=True)
    again = bucket.catalog()
    assert set(again.namespaces()) == {"empty", "sales"}
    assert [each.name for each in again.tables("sales")] == ["orders"]
    assert not [name for name in bucket.content() if "/prepared/data/" in name]
    again.drop_namespace("empty")
    assert bucket.catalog().namespaces() == ["sales"]
