"""Followers in AWS Glue, as moto has it, and in a Hive metastore: catalogs whose clients write metadata themselves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hive_metastore.ttypes import ShowLocksRequest
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse

from mirror_pump.errors import FollowerAway
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import format_lsn
from mirror_pump.ops.follow import metastore_tables
from mirror_pump.ops.follow.answer_limits import AnswerLimits
from mirror_pump.ops.follow.following import follow
from mirror_pump.ops.follow.hive_catalog import FollowingHive
from mirror_pump.ops.follow.metastore_tables import LakeMetadata
from mirror_pump.source.catalog.followers import one_follower
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.metastores import Hive, Metastore, MotoGlue, hive, moto_glue, rows_there
from tests.support.resyncs import resynced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "company"
_EGG = "this"
"""A module that nothing imports but who is made to."""


@pytest.fixture(scope="session")
def glue_server() -> Iterator[Metastore]:
    with moto_glue() as server:
        yield server


@pytest.fixture(scope="session")
def hive_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    with hive(tmp_path_factory.mktemp("hive")) as server:
        yield server


@pytest.fixture(params=["glue", pytest.param("hive", marks=pytest.mark.further)])
def other(request: pytest.FixtureRequest) -> Metastore:
    """The server, without tables of other tests."""
    server: Metastore = request.getfixturevalue(f"{request.param}_server")
    server.clear()
    return server


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Of tables `a` and `b`, which change together."""
    for table in ("a", "b"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)", f"INSERT INTO {table} VALUES (1, 'x')")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


@pytest.fixture
def following(mirror: Mirror, other: Metastore, run: RunCommand) -> Mirror:
    """The mirror, with a follower that shows its tables."""
    added = run("follow", "add", NAME, *other.arguments)
    assert added.exit_code == 0, added.output
    assert "one after the other" in added.output
    follow(mirror.settings, NAME)
    return mirror


def change(mirror: Mirror, *statements: str) -> None:
    mirror.database.execute("; ".join(("BEGIN", *statements, "COMMIT")))
    mirror.catch_up()


def examine(mirror: Mirror) -> None:
    """A round that is due to look at all tables."""
    mirror.database.execute("UPDATE modak.followers SET examined_at = NULL")
    follow(mirror.settings, NAME)


def states(run: RunCommand) -> list[str]:
    return [table["result"] for table in json.loads(run("follow", "check", NAME, "--json").stdout)]


def assert_shown(mirror: Mirror, catalog: Any, *tables: str, namespace: str = "public") -> None:
    for table in tables:
        assert_same(mirror.heap(table), normalised(rows_there(catalog, table, namespace)), table)


def appended(catalog: Any, table: str) -> None:
    """Another program's commit."""
    there = catalog.load_table(("public", table))
    there.append(pa.table({"id": pa.array([77], pa.int32()), "v": ["theirs"]}, schema=there.schema().as_arrow()))


def test_tables_follow_until_the_follower_is_removed(
    following: Mirror, other: Metastore, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = other.pyiceberg()
    assert_shown(following, catalog, "a", "b")
    versions = []
    update = GlueResponse.update_table

    def updated(response: GlueResponse) -> Any:
        # Moto compares no versions.
        versions.append((response.parameters.get("VersionId"), response.parameters.get("SkipArchive")))
        return update(response)

    monkeypatch.setattr(GlueResponse, "update_table", updated)
    change(following, "INSERT INTO a VALUES (2, 'y')", "UPDATE b SET v = 'z'", "ALTER TABLE a ADD w int DEFAULT 7")
    assert states(run) == ["behind", "behind"]
    follow(following.settings, NAME)
    assert_shown(following, catalog, "a", "b")
    assert states(run) == ["same", "same"]
    with following.database.session() as connection:
        frontier = format_lsn(one_follower(connection, following.settings.slot, NAME).published)
    assert catalog.load_namespace_properties("public")["mirror-pump.frontier"] == frontier

    if isinstance(other, MotoGlue):
        assert versions == [("1", True), ("1", True)]

    lake = Path(following.settings.require_warehouse().removeprefix("file://"))
    assert len(list(lake.rglob("followers/*/*"))) == 4

    removed = run("follow", "remove", NAME, "--yes")
    assert removed.exit_code == 0, removed.output
    assert [name for name in catalog.list_namespaces() if name != ("default",)] == []
    assert list(lake.rglob("followers/*/*")) == []


def test_a_commit_of_another_program_stays_and_the_others_go_on(
    following: Mirror, other: Metastore, run: RunCommand
) -> None:
    catalog = other.pyiceberg()
    appended(catalog, "a")
    change(following, "INSERT INTO a VALUES (2, 'v')", "INSERT INTO b VALUES (2, 'v')")
    follow(following.settings, NAME)
    assert sorted(key for key, _ in rows_there(catalog, "a")) == [1, 77]
    assert_shown(following, catalog, "b")
    assert states(run) == ["changed", "same"]
    assert run("follow", "remove", NAME, "--yes").exit_code == 1, "nor does it drop the table"
    following.database.execute("UPDATE modak.followers SET removed_at = NULL")
    catalog.drop_table(("public", "a"))
    examine(following)
    assert_shown(following, catalog, "a", "b")


def test_a_commit_between_a_look_and_a_move_stays(following: Mirror, other: Metastore) -> None:
    """The pointer moves from the file that was read, or not at all."""
    catalog = other.pyiceberg()

    def step(name: str) -> None:
        if name == "intended" and len(rows_there(catalog, "a")) == 1:
            appended(catalog, "a")

    change(following, "INSERT INTO a VALUES (2, 'v')")
    follow(following.settings, NAME, step=step)
    assert sorted(key for key, _ in rows_there(catalog, "a")) == [1, 77]
    (error,) = following.database.rows("SELECT error FROM modak.follower_tables WHERE name = 'a'")
    assert "the table is not as it was read" in str(error)


def test_what_is_set_of_a_database_stays(mirror: Mirror, glue_server: MotoGlue, run: RunCommand) -> None:
    glue_server.clear()
    client = glue_server.pyiceberg().glue
    database: dict[str, Any] = {"Name": "public", "Description": "theirs", "CreateTableDefaultPermissions": []}
    client.create_database(DatabaseInput={**database, "Parameters": {"theirs": "stays"}})
    before = client.get_database(Name="public")
    assert run("follow", "add", NAME, *glue_server.arguments, "--option", "glue.retry-mode=x").exit_code == 2
    assert run("follow", "add", NAME, *glue_server.arguments).exit_code == 0
    follow(mirror.settings, NAME)
    assert client.get_database(Name="public")["Database"] == before["Database"]

    # One that was made for the follower.
    ((follower_id,),) = mirror.database.rows("SELECT follower_id::text FROM modak.followers")
    parameters = {"theirs": "stays", "mirror-pump.follower": follower_id}
    client.update_database(Name="public", DatabaseInput={**database, "Parameters": parameters})
    examine(mirror)
    after = client.get_database(Name="public")["Database"]
    assert {key: after[key] for key in database} == database
    assert parameters.items() < after["Parameters"].items()


def test_what_is_moved_nowhere_leaves_no_files(
    mirror: Mirror, glue_server: MotoGlue, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    glue_server.clear()
    assert run("follow", "add", NAME, *glue_server.arguments).exit_code == 0
    follow(mirror.settings, NAME)
    lake = Path(mirror.settings.require_warehouse().removeprefix("file://"))

    def written() -> set[Path]:
        return set(lake.rglob("followers/*/*"))

    def refused(code: str) -> None:
        def update(_: GlueResponse) -> Any:
            raise JsonRESTError(code, "not now")

        patched.setattr(GlueResponse, "update_table", update)

    before = written()
    change(mirror, "INSERT INTO a VALUES (2, 'v')")
    with monkeypatch.context() as patched:
        refused("AccessDeniedException")
        follow(mirror.settings, NAME)
        assert written() == before
        refused("ThrottlingException")
        with pytest.raises(FollowerAway):
            examine(mirror)
    (unmoved,) = written() - before
    os.utime(unmoved, (0, 0))
    # Each tenth move looks for such files.
    monkeypatch.setattr(metastore_tables, "metadata_number", lambda _: 10)
    examine(mirror)
    assert unmoved not in written()
    assert before < written()
    assert_shown(mirror, glue_server.pyiceberg(), "a", "b")

    # An entry whose file is gone.
    location = glue_server.pyiceberg().load_table("public.b").metadata_location
    Path(location.removeprefix("file://")).unlink()
    before = written()
    examine(mirror)
    assert "rename or drop it there" in run("follow", "check", NAME).output
    assert written() == before


@pytest.mark.further
def test_a_lock_ends_with_its_call(hive_server: Hive, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = AnswerLimits(60.0)
    catalog = FollowingHive("f", {"uri": hive_server.server.uri}, StorageOptions(), limits)

    def late(*_: object) -> Any:
        limits._end = 0.0
        raise ConnectionError("the storage is slow")

    monkeypatch.setattr(catalog, "_get_hive_table", late)
    with pytest.raises(ConnectionError):
        catalog.commit_table(SimpleNamespace(name=lambda: ("public", "a")), (), ())  # type: ignore[arg-type]
    with hive_server.pyiceberg()._client as client:
        assert client.show_locks(ShowLocksRequest()).locks in (None, [])


@pytest.mark.further
def test_a_metastore_compares_what_an_engine_without_locks_has_moved(
    mirror: Mirror, hive_server: Metastore, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hive_server.clear()
    assert run("follow", "add", NAME, *hive_server.arguments).exit_code == 0
    follow(mirror.settings, NAME)
    location = hive_server.pyiceberg().load_table(("public", "a")).metadata_location
    theirs = location.replace("00000-", "00001-")
    Path(theirs.removeprefix("file://")).write_bytes(Path(location.removeprefix("file://")).read_bytes())
    write = LakeMetadata.write

    def written(files: LakeMetadata, name: str) -> None:
        # The table was looked at under its lock.
        write(files, name)
        hive_server.alter("a", {"metadata_location": theirs})

    change(mirror, "INSERT INTO a VALUES (2, 'v')")
    with monkeypatch.context() as patched:
        patched.setattr(LakeMetadata, "write", written)
        follow(mirror.settings, NAME)
    assert hive_server.pyiceberg().load_table(("public", "a")).metadata_location == theirs
    ((error,),) = mirror.database.rows("SELECT error FROM modak.follower_tables WHERE name = 'a'")
    assert "metadata_location" in error
    # It shows what the mirror has made, so it goes on.
    examine(mirror)
    assert_shown(mirror, hive_server.pyiceberg(), "a", "b")


def test_what_metadata_say_runs_nothing_and_deletes_no_other_files(
    following: Mirror, other: Metastore, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, _EGG, raising=False)
    catalog = other.pyiceberg()
    location = catalog.load_table(("public", "a")).metadata_location
    file = Path(location.removeprefix("file://"))
    document = json.loads(file.read_text())
    data = [path for path in file.parents[2].rglob("*") if path.is_file()]
    # Its own former files, of which ten stay, and before them other files of the lake.
    logged = [file.with_name(f"00000-{number}.metadata.json") for number in range(11)]
    for path in logged:
        path.write_text("{}")
    document["metadata-log"] = [{"metadata-file": path.as_uri(), "timestamp-ms": 1} for path in (*data, *logged)]
    egg = f"{_EGG}.s"
    document["properties"] |= {"py-io-impl": egg, "write.py-location-provider.impl": egg, "theirs": "stays"}
    document["properties"]["write.metadata.path"] = (tmp_path / "theirs").as_uri()
    file.write_text(json.dumps(document))

    change(following, "INSERT INTO a VALUES (2, 'v')")
    follow(following.settings, NAME)
    assert states(run) == ["same", "same"]
    assert _EGG not in sys.modules
    assert not (tmp_path / "theirs").exists()
    (moved,) = (path for path in file.parent.iterdir() if path != file and path.name.startswith("00001"))
    assert json.loads(moved.read_text())["properties"]["theirs"] == "stays"
    assert [path for path in data if not path.exists()] == []
    assert [path for path in logged if not path.exists()] == logged[:2]


def test_what_is_no_table_of_the_lake_is_not_read_and_stays(
    following: Mirror, other: Metastore, run: RunCommand, warehouse: str
) -> None:
    location = other.pyiceberg().load_table(("public", "a")).metadata_location
    file = Path(location.removeprefix("file://"))
    outside = Path(warehouse.removeprefix("file://")).parent / file.name
    outside.write_bytes(file.read_bytes())
    data = next(path for path in file.parents[2].rglob("*.parquet"))
    for parameter, value in (
        ("metadata_location", outside.as_uri()),
        ("metadata_location", f"{warehouse}/../{file.name}"),
        ("metadata_location", f"s3://another/{file.name}"),
        ("metadata_location", data.as_uri()),
        ("table_type", "HUDI"),
    ):
        other.alter("a", {parameter: value})
        examine(following)
        assert states(run) == ["foreign", "same"], value
        other.alter("a", {"metadata_location": location})
    removed = run("follow", "remove", NAME, "--yes")
    assert removed.exit_code == 0, removed.output
    other.alter("a", {"table_type": "ICEBERG"})
    assert other.pyiceberg().list_tables("public") == [("public", "a")]


def test_names_that_are_one_there(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, other: Metastore
) -> None:
    """Names there are in lower case."""
    database.execute('CREATE TABLE "Orders" (id int PRIMARY KEY)', 'INSERT INTO "Orders" VALUES (1)')
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register('"Orders"')
    mirror.catch_up()
    assert run("follow", "add", NAME, *other.arguments, "--namespace", "a.{schema}").exit_code == 2
    assert run("follow", "add", NAME, *other.arguments, "--namespace", "Shop_{schema}").exit_code == 0
    follow(mirror.settings, NAME)
    assert rows_there(other.pyiceberg(), "orders", "shop_public") == [(1,)]
    assert states(run) == ["same"]
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    mirror.register("orders")
    change(mirror, 'INSERT INTO "Orders" VALUES (2)')
    follow(mirror.settings, NAME)
    checked = run("follow", "check", NAME)
    assert (checked.exit_code, checked.output.count("unregister one of the two")) == (1, 1)
    assert sorted(rows_there(other.pyiceberg(), "orders", "shop_public")) == [(1,), (2,)], "the other one goes on"
    mirror.unregister('public."Orders"')
    examine(mirror)
    assert rows_there(other.pyiceberg(), "orders", "shop_public") == []
    assert states(run) == ["same"]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.further
def test_every_kind_of_table_follows_through_its_changes(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, other: Metastore, run: RunCommand, version: int
) -> None:
    """Keys that are updated and deleted, columns that change, a truncation, a copy; a name, and another table of it."""
    database.execute(
        "CREATE TABLE events (id int PRIMARY KEY, at timestamp, v text)",
        "INSERT INTO events SELECT g, timestamp '2026-01-01' + g * interval '1 h', 'v' FROM generate_series(1, 99) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    layout = ("--partition-by", "day(at)", "--format-version", str(version))
    assert run("register", "events", *layout, "--no-wait").exit_code == 0
    mirror.catch_up()
    added = run("follow", "add", NAME, *other.arguments)
    assert added.exit_code == 0, added.output
    steps: tuple[Callable[[], object], ...] = (
        lambda: change(mirror, "DELETE FROM events WHERE id % 3 = 0", "UPDATE events SET v = 'w' WHERE id % 5 = 0"),
        lambda: change(mirror, "ALTER TABLE events ADD n int DEFAULT 5", "ALTER TABLE events RENAME v TO text"),
        lambda: change(mirror, "INSERT INTO events SELECT id + 1000, at, text, 7 FROM events"),
        # A metastore takes no column of another type where a former one was.
        lambda: change(mirror, "ALTER TABLE events DROP text", "UPDATE events SET id = id + 5000 WHERE id < 20"),
        lambda: change(mirror, "TRUNCATE events", "INSERT INTO events VALUES (1, now(), 6)"),
        lambda: copied_again(mirror),
        lambda: change(mirror, "INSERT INTO events VALUES (2, now(), 7)", "DELETE FROM events WHERE id = 1"),
    )
    for step in steps:
        follow(mirror.settings, NAME)
        assert mirror.database.rows("SELECT error FROM modak.follower_tables") == [(None,)]
        assert_shown(mirror, other.pyiceberg(), "events")
        step()
    follow(mirror.settings, NAME)
    assert states(run) == ["same"]
    mirror.unregister("public.events", drop_lake=True)
    database.execute("DROP TABLE events", "CREATE TABLE events (n int PRIMARY KEY)", "INSERT INTO events VALUES (5)")
    mirror.register("events")
    mirror.catch_up()
    examine(mirror)
    assert rows_there(other.pyiceberg(), "events") == [(5,)]
    assert run("follow", "remove", NAME, "--yes").exit_code == 0


@pytest.mark.further
def test_spark_reads_by_a_hive_metastore(
    mirror: Mirror, hive_server: Metastore, run: RunCommand, spark: SparkSession
) -> None:
    hive_server.clear()
    assert run("follow", "add", NAME, *hive_server.arguments).exit_code == 0
    session = spark.newSession()
    catalog = "spark.sql.catalog.company"
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    uri = hive_server.arguments[1]
    for option, value in (("type", "hive"), ("uri", uri), ("cache-enabled", "false")):
        session.conf.set(f"{catalog}.{option}", value)
    for _ in range(2):
        follow(mirror.settings, NAME)
        for table in ("a", "b"):
            rows = [tuple(row) for row in session.sql(f"SELECT * FROM company.public.{table}").collect()]
            assert_same(mirror.heap(table), normalised(rows), table)
        change(mirror, "UPDATE a SET v = v || 'y'", "INSERT INTO b SELECT max(id) + 1, 'z' FROM b")


def copied_again(mirror: Mirror) -> None:
    """Copies the table again."""
    resynced(mirror, "events")
    mirror.catch_up()
