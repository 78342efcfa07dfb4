"""Catalogs whose rows name tables: tables get other names, or come with their metadata file, and namespaces have
properties. Whatever is renamed and made anew, no table has files in another one's directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.rest_catalog import lake_catalog_source
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.catalogs import memory_catalog, postgres_catalog, sqlite_catalog
from mirror_pump.tables.catalogs.lake_catalog import (
    MetadataPointer,
    PointerChange,
    RowCatalog,
    StoredCatalog,
    TableIdentifier,
    TableMoved,
)
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.tables.catalogs.table_directories import DirectoryRefused
from mirror_pump.tables.table.orphan_files import find_orphans
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.mirror import Mirror
from sql.mirror_names import SCHEMA
from tests.support.catalog_kinds import ROWS, CatalogPlace, rows
from tests.support.local_files import path_of
from tests.support.rest_catalog import CatalogAnswer, ServedMirror, serving

ROW_KINDS = ("memory", "sqlite", "postgres")
_SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}


def send(server: ServedMirror, path: str, body: Mapping[str, Any]) -> CatalogAnswer:
    return server.ask(f"/v1/{path}", "POST", json.dumps(body))


def rename(server: ServedMirror, kind: str, source: str, destination: str) -> CatalogAnswer:
    """Both as NAMESPACE.TABLE."""

    def parts(table: str) -> Mapping[str, Any]:
        namespace, _, name = table.partition(".")
        return {"namespace": [namespace], "name": name}

    return send(server, f"{kind}/tables/rename", {"source": parts(source), "destination": parts(destination)})


def make_namespaces(server: ServedMirror, kind: str, *names: str) -> None:
    for name in names:
        assert send(server, f"{kind}/namespaces", {"namespace": name.split(".")}).status == 200


def created(kind: str, server: ServedMirror, name: str, **more: Any) -> CatalogAnswer:
    namespace, _, table = name.rpartition(".")
    path = f"{kind}/namespaces/{namespace.replace('.', '%1F')}/tables"
    return send(server, path, {"name": table, "schema": _SCHEMA, **more})


def files_of(location: str) -> Sequence[Path]:
    return [path for path in Path(path_of(location)).rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_renamed_table_and_a_new_one_of_its_old_name_share_nothing(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    catalog = catalogs[kind]
    client = writable.pyiceberg(kind)
    make_namespaces(writable, kind, "names", "names.t", "other")
    old = Table.create(catalog, "names.old", ROWS)
    old.append(rows(1, 2))
    client.rename_table("names.old", "other.new")
    with pytest.raises(NoSuchTableError):
        client.load_table("names.old")
    assert client.load_table("other.new").scan().to_arrow()["id"].to_pylist() == [1, 2]
    assert Table.open(catalog, "other.new").metadata_location == old.metadata_location
    # A writer that knows the old name only does not get on, and one by the new name does.
    with pytest.raises(TableMoved):
        catalog.commit([PointerChange(old.identifier, MetadataPointer(old.metadata_location), old.metadata)])
    Table.open(catalog, "other.new").append(rows(3))
    again = client.create_table("names.old", ROWS)
    again.append(rows(7))
    assert again.location() != old.location
    assert rename(writable, kind, "names.old", "other.new").error[:2] == (409, "AlreadyExistsException")
    assert rename(writable, kind, "names.absent", "other.newer").error[:2] == (404, "NoSuchTableException")
    assert rename(writable, kind, "names.old", "nowhere.old").error[:2] == (404, "NoSuchNamespaceException")
    assert rename(writable, kind, "names.old", "names.t").error[:2] == (409, "AlreadyExistsException")
    assert rename(writable, kind, "names.old", "names._hidden").error[0] == 400
    client.purge_table("other.new")
    assert files_of(old.location) == []
    assert client.load_table("names.old").scan().to_arrow()["id"].to_pylist() == [7]


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_no_two_tables_have_one_directory_or_one_in_the_other(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    """Whatever locations clients ask for, and however old the request is that creates a table."""
    catalog = catalogs[kind]
    assert isinstance(catalog, RowCatalog)
    make_namespaces(writable, kind, "apart", "apart.x")
    prepared = created(kind, writable, "apart.x.y", **{"stage-create": True}).document["metadata"]
    commit = {
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": prepared["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "add-schema", "schema": prepared["schemas"][0], "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": prepared["location"]},
        ],
    }
    path = f"{kind}/namespaces/apart%1Fx/tables/y"
    assert send(writable, path, commit).status == 200
    writable.pyiceberg(kind).rename_table("apart.x.y", "apart.renamed")
    # The same request once more, as a client sends it that got no answer.
    assert send(writable, path, commit).error[0] == 400
    elsewhere = (
        prepared["location"],
        f"{prepared['location']}/data-0123456789ab",
        f"{catalog.warehouse}/apart",
        f"{catalog.warehouse}/apart/../z-0123456789ab",
        "file:///tmp/z-0123456789ab",
        catalog.warehouse,
    )
    for location in elsewhere:
        commit["updates"][-1]["location"] = location
        assert send(writable, path, commit).error[0] == 400, location
    # As one whose files were removed since it was sent.
    fresh = created(kind, writable, "apart.x.y", **{"stage-create": True}).document["metadata"]["location"]
    commit["updates"][-1]["location"] = fresh
    metadata_file = Table.open(catalog, "apart.renamed").metadata_location
    snapshot = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "summary": {"operation": "append"}}
    for location in (f"{fresh}/metadata/1.avro", metadata_file):
        added = {"action": "add-snapshot", "snapshot": {**snapshot, "manifest-list": location}}
        code, _, message = send(writable, path, {**commit, "updates": [*commit["updates"], added]}).error
        assert (code, "no manifest list" in message) == (400, True), message
    for location in (
        f"{prepared['location']}/inner",
        "file:///tmp/elsewhere",
        f"{catalog.warehouse}/../up",
        "s3://b/x",
    ):
        assert created(kind, writable, "apart.asked", location=location).error[0] == 400, location
    asked = created(kind, writable, "apart.asked", location=f"{catalog.warehouse}/wherever/asked").document["metadata"]
    assert asked["location"].rpartition("-")[0] == f"{catalog.warehouse}/wherever/asked"
    moved = {"updates": [{"action": "set-location", "location": f"{catalog.warehouse}/moved"}]}
    assert send(writable, f"{kind}/namespaces/apart/tables/asked", moved).error[0] == 400
    # By the library, too.
    metadata = Table.open(catalog, "apart.renamed").metadata
    with pytest.raises(DirectoryRefused, match=r"apart\.renamed"):
        catalog.commit([PointerChange(TableIdentifier("apart", "copy"), None, metadata)])
    assert writable.ask(f"/v1/{kind}/namespaces/apart/tables/renamed?purgeRequested=true", "DELETE").status == 204
    assert files_of(prepared["location"]) == []


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_table_is_registered_once_and_with_its_own_directory(
    catalogs: Mapping[str, StoredCatalog],
    writable: ServedMirror,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = catalogs[kind]
    make_namespaces(writable, kind, "files")
    client = writable.pyiceberg(kind)
    path = f"{kind}/namespaces/files/register"

    def register(name: str, location: str, **more: Any) -> CatalogAnswer:
        return send(writable, path, {"name": name, "metadata-location": location, **more})

    living, dropped = (Table.create(catalog, f"files.{name}", ROWS) for name in ("living", "dropped"))
    dropped.append(rows(4))
    file = dropped.metadata_location
    assert register("dropped", file).error[:2] == (409, "AlreadyExistsException")
    assert "files.dropped" in register("second", file).error[2]
    # An older state of a table that is there, and one in its directory that is no table's.
    assert register("second", f"{living.location}/metadata/../metadata/x.metadata.json").error[0] == 400
    inner = Path(path_of(living.location)) / "inner" / "metadata"
    inner.mkdir(parents=True)
    (inner / "1.metadata.json").write_text(json.dumps({**dropped.metadata.document, "location": str(inner.parent)}))
    assert (
        "in the directory of a table"
        in register("second", f"{living.location}/inner/metadata/1.metadata.json").error[2]
    )
    Table.drop(catalog, "files.dropped")
    assert register("dropped", file, overwrite=True).error[0] == 400
    # The file of a path catalog's table, and one that a purge removes meanwhile.
    numbered = Path(path_of(file)).with_name("v1.metadata.json")
    numbered.write_bytes(Path(path_of(file)).read_bytes())
    numbered.with_name("version-hint.text").write_text("1")
    assert "found by its directory" in register("second", numbered.as_uri()).error[2]
    with monkeypatch.context() as purge:
        purge.setattr(lake_catalog_source, "exists", lambda *_: False)
        assert "was removed" in register("second", file).error[2]
    assert client.list_tables("files") == [("files", "living")]
    assert client.register_table("files.again", file).scan().to_arrow()["id"].to_pylist() == [4]
    assert register("second", file).error[0] == 400
    with pytest.raises(TableAlreadyExistsError):
        client.register_table("files.again", file)
    Table.open(catalog, "files.again").append(rows(5))
    assert sorted(client.load_table("files.again").scan().to_arrow()["id"].to_pylist()) == [4, 5]
    client.drop_table("files.again")
    document = {**dropped.metadata.document}
    directory = Path(path_of(dropped.location)) / "metadata"
    for name, content in {
        "text": b"no JSON",
        "version": json.dumps({**document, "format-version": 4}).encode(),
        "elsewhere": json.dumps({**document, "location": living.location}).encode(),
        "its-metadata-elsewhere": json.dumps(
            {**document, "properties": {"write.metadata.path": f"{living.location}/metadata"}}
        ).encode(),
    }.items():
        (directory / f"{name}.metadata.json").write_bytes(content)
        code, _, message = register("second", f"{dropped.location}/metadata/{name}.metadata.json").error
        assert code == 400, message
    outside = tmp_path / "t" / "metadata"
    outside.mkdir(parents=True)
    (outside / "1.metadata.json").write_text(json.dumps({**document, "location": str(outside.parent)}))
    for location in (
        (outside / "1.metadata.json").as_uri(),
        f"{dropped.location}/metadata/absent.metadata.json",
        f"{dropped.location}/data/1.parquet",
        "/etc/passwd",
        "s3://elsewhere/t/metadata/1.metadata.json",
    ):
        assert register("second", location).error[0] == 400, location
    assert client.list_tables("files") == [("files", "living")]


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_files_that_two_tables_share_stay_until_one_has_no_row(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other engines and earlier versions leave them."""
    catalog = catalogs[kind]
    table = Table.create(catalog, "shared.t", ROWS)
    table.append(rows(1))
    with monkeypatch.context() as other_engine:
        for module in (memory_catalog, sqlite_catalog, postgres_catalog):
            other_engine.setattr(module, "require_apart", lambda *_: None)
        pointer = MetadataPointer(table.metadata_location)
        catalog.commit([PointerChange(TableIdentifier("shared", "u"), None, pointer)])
    files = files_of(table.location)
    for name, other in (("t", "u"), ("u", "t")):
        path = f"/v1/{kind}/namespaces/shared/tables/{name}"
        code, _, message = writable.ask(f"{path}?purgeRequested=true", "DELETE").error
        assert (code, f"shared.{other}" in message, "without purge" in message) == (400, True, True), message
        with pytest.raises(DirectoryRefused, match=rf"shared\.{other}"):
            find_orphans(catalog, f"shared.{name}")
    # A rename moves no directory, and gives one name.
    twice = [PointerChange(TableIdentifier("shared", name), None, pointer) for name in "xy"]
    with pytest.raises(DirectoryRefused):
        catalog.commit([PointerChange(TableIdentifier("shared", "u"), pointer, None), *twice])
    assert rename(writable, kind, "shared.u", "shared.v").status == 204
    assert writable.ask(f"/v1/{kind}/namespaces/shared/tables/v", "DELETE").status == 204
    assert files_of(table.location) == files
    assert find_orphans(catalog, "shared.t") == ()
    assert writable.ask(f"/v1/{kind}/namespaces/shared/tables/t?purgeRequested=true", "DELETE").status == 204
    assert files_of(table.location) == []


def test_catalogs_of_one_file_leave_the_files_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, warehouse = StorageOptions(fsync=False), tmp_path.as_uri()
    file = tmp_path / "c.db"
    with (
        closing(sqlite_catalog.SqliteCatalog(file, warehouse, storage, name="a")) as a,
        closing(sqlite_catalog.SqliteCatalog(file, warehouse, storage, name="b")) as b,
    ):
        table = Table.create(a, "sales.secret", ROWS)
        with monkeypatch.context() as other_engine:
            other_engine.setattr(sqlite_catalog, "require_apart", lambda *_: None)
            b.commit([PointerChange(TableIdentifier("n", "t"), None, MetadataPointer(table.metadata_location))])
        with pytest.raises(DirectoryRefused, match="another catalog's table") as refused:
            Table.drop(b, "n.t", purge=True)
        assert "sales.secret" not in str(refused.value)
        assert Table.open(a, "sales.secret").scan().to_arrow().num_rows == 0


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_namespace_named_metadata_is_one_like_others(writable: ServedMirror, kind: str) -> None:
    make_namespaces(writable, kind, "beside", "beside.metadata")
    assert created(kind, writable, "beside.metadata.t").status == 200
    assert created(kind, writable, "beside.after").status == 200


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_location_that_another_engine_gave_a_namespace(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    catalog = catalogs[kind]
    assert isinstance(catalog, RowCatalog)
    local = path_of(catalog.warehouse)
    for count, (location, parent) in enumerate(
        (
            ("file:///elsewhere", "{}"),
            ("s3://bucket/x", "{}"),
            (f"{catalog.warehouse}/../up", "{}"),
            (f"{local}/plain", "plain"),
            (f"file:{local}/short/", "short"),
        )
    ):
        namespace = f"given{count}"
        catalog.change_properties(namespace, (), {"location": location})
        expected = f"{catalog.warehouse}/{parent.format(namespace)}/t-"
        made = created(kind, writable, f"{namespace}.t")
        assert made.status == 200, made.body
        assert made.document["metadata"]["location"].startswith(expected)
        assert Table.create(catalog, f"{namespace}.tt", ROWS).location.startswith(expected.replace("/t-", "/tt-"))


@pytest.mark.parametrize("kind", [*ROW_KINDS, "path"])
def test_names_that_are_too_long_are_refused(writable: ServedMirror, kind: str) -> None:
    make_namespaces(writable, kind, "long")
    longest = 255 if kind == "path" else 242
    assert created(kind, writable, f"long.{'x' * longest}").status == 200
    for name in ("x" * (longest + 1), "é" * (longest // 2 + 1)):
        assert created(kind, writable, f"long.{name}").error[0] == 400
    assert send(writable, f"{kind}/namespaces", {"namespace": ["x" * 256]}).error[0] == 400


@pytest.mark.further
def test_an_addition_waits_for_another_a_while_only(places: Mapping[str, CatalogPlace], writable: ServedMirror) -> None:
    """Five seconds."""
    make_namespaces(writable, "postgres", "waits")
    with psycopg.connect(places["postgres"].dsn, cursor_factory=CatalogCursor) as session:
        session.execute(f"LOCK TABLE {SCHEMA}.iceberg_namespace_properties IN SHARE UPDATE EXCLUSIVE MODE")
        assert created("postgres", writable, "waits.t").error[:2] == (503, "ServiceUnavailableException")
    assert created("postgres", writable, "waits.t").status == 200


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_of_two_who_register_one_file_at_once_one_gets_it(
    places: Mapping[str, CatalogPlace], catalogs: Mapping[str, StoredCatalog], kind: str
) -> None:
    table = Table.create(catalogs[kind], "once.t", ROWS)
    Table.drop(catalogs[kind], "once.t")
    pointer = MetadataPointer(table.metadata_location)

    def register(name: str) -> bool:
        with closing(places[kind].open()) as catalog:
            try:
                catalog.commit([PointerChange(TableIdentifier("once", name), None, pointer)])
            except DirectoryRefused:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(register, "abcd")) == [False, False, False, True]
    assert len(catalogs[kind].tables("once")) == 1


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_namespaces_keep_properties(
    places: Mapping[str, CatalogPlace], catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    catalog = catalogs[kind]
    assert isinstance(catalog, RowCatalog)
    client = writable.pyiceberg(kind)
    client.create_namespace("kept", {"owner": "anna"})
    with pytest.raises(NamespaceAlreadyExistsError):
        client.create_namespace("kept", {"owner": "bob"})
    path = f"{kind}/namespaces/kept/properties"
    change = {"removals": ["owner", "absent"], "updates": {"team": "sales", "ä": "é"}}
    assert send(writable, path, change).document == {
        "updated": ["team", "ä"],
        "removed": ["owner"],
        "missing": ["absent"],
    }
    assert client.load_namespace_properties("kept") == {"team": "sales", "ä": "é"}
    both = send(writable, path, {"removals": ["team"], "updates": {"team": "x"}})
    assert both.error[:2] == (422, "UnprocessableEntityException")
    assert send(writable, path.replace("kept", "absent"), change).error[:2] == (404, "NoSuchNamespaceException")
    wrong = ({"exists": "no"}, {"": "x"}, {"x" * 256: "y"}, {"x": "y" * 1001}, {"location": "file:///tmp/x"})
    for updates in wrong:
        assert send(writable, path, {"updates": updates}).error[0] == 400, updates
        name = f"new{len(str(updates))}"
        assert send(writable, f"{kind}/namespaces", {"namespace": [name], "properties": updates}).error[0] == 400
    assert client.load_namespace_properties("kept") == {"team": "sales", "ä": "é"}
    # One that is there by its tables alone.
    Table.create(catalog, "tables.t", ROWS)
    client.update_namespace_properties("tables", updates={"location": f"{catalog.warehouse}/sales/"})
    assert client.create_table("tables.u", ROWS).location().startswith(f"{catalog.warehouse}/sales/u-")
    inside = {"location": f"{client.load_table('tables.u').location()}/inner"}
    assert send(writable, path, {"updates": inside}).error[0] == 400
    if kind != "memory":
        with closing(places[kind].open()) as other:
            assert isinstance(other, RowCatalog)
            assert other.namespace_properties("kept") == {"team": "sales", "ä": "é"}
    client.drop_namespace("kept")
    assert send(writable, f"{kind}/namespaces", {"namespace": ["kept"]}).document["properties"] == {}


@pytest.mark.parametrize("kind", ["path", "log"])
def test_where_a_name_is_a_directory_it_stays(
    catalogs: Mapping[str, StoredCatalog], writable: ServedMirror, kind: str
) -> None:
    table = Table.create(catalogs[kind], "stay.t", ROWS)
    served = writable.ask(f"/v1/config?warehouse={kind}").document["endpoints"]
    assert not [name for name in served if name.endswith(("rename", "register", "/properties"))]
    register = {"name": "u", "metadata-location": table.metadata_location}
    for answer in (
        rename(writable, kind, "stay.t", "stay.u"),
        send(writable, f"{kind}/namespaces/stay/register", register),
        send(writable, f"{kind}/namespaces/stay/properties", {"updates": {"a": "b"}}),
    ):
        code, error, message = answer.error
        assert (code, error, "SQLite or PostgreSQL" in message) == (501, "UnsupportedOperationException", True)
    with pytest.raises(LakeError, match="a table's name is its directory"):
        catalogs[kind].commit(
            [PointerChange(TableIdentifier("stay", "u"), None, MetadataPointer(table.metadata_location))]
        )
    assert writable.ask(f"/v1/{kind}/namespaces/stay").document == {"namespace": ["stay"]}


def test_files_of_the_mirror_in_the_same_database_are_its_own(mirror_of: Callable[..., Mirror], tmp_path: Path) -> None:
    """A catalog of another name has the mirror's warehouse, unless it is given another one."""
    mirror = mirror_of("t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    root, dsn = str(mirror.settings.warehouse), mirror.settings.require_dsn()
    storage = StorageOptions(fsync=False)
    with (
        closing(PostgresCatalog(dsn, root, storage)) as lake,
        closing(PostgresCatalog(dsn, root, storage, name="own")) as own,
    ):
        name = TableIdentifier("public", "t")
        pointer = lake.load(name)
        assert pointer is not None
        for source, destination in ((name, TableIdentifier("public", "u")), (TableIdentifier("public", "u"), name)):
            base = lake.load(source)
            with pytest.raises(LakeError, match="is the mirror's"):
                lake.commit([PointerChange(source, base, None), PointerChange(destination, None, pointer)])
        with pytest.raises(DirectoryRefused, match="another catalog's table"):
            own.commit([PointerChange(name, None, pointer)])
        with serving(LakeCatalogSource("lake", lake, read_write=True)) as server:
            make_namespaces(server, "lake", "other")
            assert rename(server, "lake", "public.t", "other.t").error[:2] == (403, "ForbiddenException")
        directory = pointer.metadata_location.rpartition("/metadata/")[0]
        with serving(LakeCatalogSource("own", own, read_write=True)) as server:
            make_namespaces(server, "own", "public")
            register = {"name": "u", "metadata-location": pointer.metadata_location}
            code, _, message = send(server, "own/namespaces/public/register", register).error
            assert (code, "the pump's" in message) == (403, True), message
            assert created("own", server, "public.u", location=f"{directory}/x").error[0] == 400
            # A name like that of the mirrored table's directory.
            made = created("own", server, f"public.{directory.rpartition('/')[2]}").document["metadata"]
            assert made["location"].startswith(f"{directory}-")
