"""A client that attaches a moment sees all tables at one frontier, for as long as it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mirror_pump.lake.metadata.metadata_files import next_location, read_metadata
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, write_bytes
from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.rest_catalog import ServedMirror, served

_ROUNDS = 6


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Two tables that get the same rows in each transaction."""
    for name in ("a", "b"):
        database.execute(f"CREATE TABLE {name} (v int PRIMARY KEY)", f"INSERT INTO {name} VALUES (0)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b")
    mirror.catch_up()
    return mirror


@pytest.fixture
def catalog(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings) as running:
        yield running


def change(mirror: Mirror, value: int) -> int:
    """Gives both tables a row with this value. Returns a frontier at which they have it. (Without deletes: pyiceberg
    refuses equality deletes, and the pump may still be reading its key index.)"""
    mirror.database.execute(f"BEGIN; INSERT INTO a SELECT {value}; INSERT INTO b SELECT {value}; COMMIT")
    return mirror.await_frontier()


def by_duckdb(catalog: ServedMirror, warehouse: str) -> Callable[[str], int]:
    """Attaches, and returns what reads a table's value."""
    connection = catalog.duckdb(warehouse)
    return lambda table: int(connection.execute(f"SELECT max(v) FROM lake.public.{table}").fetchall()[0][0])


def by_pyiceberg(catalog: ServedMirror, warehouse: str) -> Callable[[str], int]:
    client = catalog.pyiceberg(warehouse)
    return lambda table: max(client.load_table(("public", table)).scan().to_arrow()["v"].to_pylist())


@pytest.mark.parametrize("attached", [by_duckdb, by_pyiceberg])
def test_tables_that_are_read_one_after_the_other_are_of_one_frontier(
    mirror: Mirror, catalog: ServedMirror, attached: Callable[[ServedMirror, str], Callable[[str], int]]
) -> None:
    """In all rounds, although a transaction on both is published between the two reads. Without a moment in none."""
    newest = attached(catalog, "mirror")
    with mirror.pumping():
        for value in range(1, _ROUNDS + 1):
            change(mirror, 10 * value)
            moment = attached(catalog, "mirror@latest" if value % 2 else "mirror@now")
            first, then = moment("a"), newest("a")
            change(mirror, 10 * value + 1)
            assert (first, moment("b"), moment("a")) == (10 * value,) * 3
            assert (then, newest("b")) == (10 * value, 10 * value + 1)


def test_a_past_moment_is_named_by_a_position_or_a_time(mirror: Mirror, catalog: ServedMirror) -> None:
    values = {}
    with mirror.pumping():
        for value in range(1, 4):
            values[change(mirror, value)] = value
    for frontier, value in values.items():
        text = format_lsn(frontier)
        for name in (text, text.replace("/", "-"), text.replace("/", "%2F")):
            prefix = catalog.attach(f"mirror@{name}")
            loaded = catalog.ask(f"/v1/{prefix}/namespaces/public/tables/b").document
            # Engines may ignore the answer and open the file.
            stored = read_metadata(loaded["metadata-location"], StorageOptions())
            assert loaded["metadata"] == stored.document
            assert loaded["config"]["mirror-pump.frontier"] == prefix.partition("=")[2].replace("-", "/")
        assert by_duckdb(catalog, f"mirror@{text.replace('/', '-')}")("b") == value
        snapshot = stored.current_snapshot
        assert snapshot is not None
        assert by_pyiceberg(catalog, f"mirror@{_iso(snapshot.timestamp_ms)}")("b") == value
    ahead = catalog.ask(f"/v1/config?warehouse=mirror@{format_lsn(mirror.database.lsn() + (1 << 30))}")
    assert "has not reached" in ahead.error[2]
    before = catalog.ask("/v1/config?warehouse=mirror@2001-01-01")
    assert "the oldest moment that can be read is mirror@" in before.error[2]


def _iso(moment_ms: int) -> str:
    seconds, rest = divmod(moment_ms, 1000)
    import datetime

    at = datetime.datetime.fromtimestamp(seconds, datetime.UTC) + datetime.timedelta(milliseconds=rest)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_moment_outlives_the_server(mirror: Mirror, database: Database, catalog: ServedMirror) -> None:
    """The lease names its snapshots, whatever the history says by then. A load renews it."""
    prefix = catalog.attach("mirror@latest")
    path = f"/v1/{prefix}/namespaces/public/tables/a"
    kept = catalog.ask(path).document["metadata"]["current-snapshot-id"]
    with mirror.pumping():
        change(mirror, 1)
    database.execute("UPDATE modak.read_pins SET expires_at = now() + interval '1 minute'")
    with served(mirror.settings) as restarted:
        loaded = restarted.ask(path).document
        assert loaded["metadata"]["current-snapshot-id"] == kept
        assert [entry["snapshot-id"] for entry in loaded["metadata"]["snapshots"]] == [kept]
        assert restarted.ask(path).document == loaded
    ((left, count),) = database.rows(
        "SELECT min(expires_at - now()) > interval '10 minutes', count(*) FROM modak.read_pins"
    )
    assert (left, count) == (True, 2)


def test_a_moment_that_is_gone_says_what_to_do(mirror: Mirror, database: Database) -> None:
    """First its lease ends, which the history makes up for; then the snapshot leaves the history."""
    with served(mirror.settings) as catalog:
        prefix = catalog.attach("mirror@latest")
    path = f"/v1/{prefix}/namespaces/public/tables/a"
    with mirror.pumping():
        change(mirror, 1)
        change(mirror, 2)
    with served(mirror.settings) as catalog:
        database.execute("UPDATE modak.read_pins SET expires_at = now()")
        again = catalog.ask(path)
        assert again.status == 200
        assert catalog.ask(f"/v1/{prefix}/namespaces/public/tables").status == 200
    database.execute("DELETE FROM modak.read_pins")
    for table in ("a", "b"):
        _thin(mirror, f"public.{table}")
    with served(mirror.settings) as catalog:
        code, _, message = catalog.ask(path).error
    assert code == 400
    assert "gone" in message
    assert "attach mirror@latest" in message
    assert database.rows("SELECT * FROM modak.read_pins") == []


def _thin(mirror: Mirror, table: str) -> None:
    """Leaves the newest two snapshots in the history."""
    old = mirror.location(table)
    metadata = read_metadata(old, StorageOptions())
    kept = metadata.document["snapshots"][-2:]
    named = {entry["snapshot-id"] for entry in kept}
    log = [entry for entry in metadata.document["snapshot-log"] if entry["snapshot-id"] in named]
    thinned = TableMetadata({**metadata.document, "snapshots": kept, "snapshot-log": log})
    new = next_location(metadata, old)
    write_bytes(new, thinned.to_json(), StorageOptions())
    mirror.database.execute(
        f"UPDATE modak.iceberg_tables SET metadata_location = '{new}' WHERE metadata_location = '{old}'"
    )


def test_a_table_that_cannot_be_shown_is_left_out_and_says_why(mirror: Mirror, catalog: ServedMirror) -> None:
    before = format_lsn(mirror.frontier())
    mirror.database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    mirror.register("late")
    mirror.catch_up()
    config = catalog.ask(f"/v1/config?warehouse=mirror@{before}").document
    assert config["defaults"]["mirror-pump.unreadable"] == "public.late"
    tables = f"/v1/{config['overrides']['prefix']}/namespaces/public/tables"
    assert [entry["name"] for entry in catalog.ask(tables).document["identifiers"]] == ["a", "b"]
    code, _, message = catalog.ask(f"{tables}/late").error
    assert code == 400
    assert "public.late has been live since frontier" in message
    assert catalog.ask(f"{tables}/never").error[0] == 404
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'failed' WHERE lake_table = 'a'")
    mirror.database.execute("INSERT INTO b VALUES (2)")
    mirror.catch_up()
    config = catalog.ask("/v1/config?warehouse=mirror@latest").document
    assert config["defaults"]["mirror-pump.unreadable"] == "public.a"
    _, _, message = catalog.ask(f"/v1/{config['overrides']['prefix']}/namespaces/public/tables/a").error
    assert "public.a is failed: its lake ends at frontier" in message
    assert catalog.ask("/v1/mirror/namespaces/public/tables/a").status == 200
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'live' WHERE lake_table = 'a'")


def test_what_a_moment_needs_is_pinned_and_nobody_waits_for_it(
    mirror: Mirror, database: Database, catalog: ServedMirror
) -> None:
    catalog.attach("mirror@latest")
    published = database.rows("SELECT table_id, lake_snapshot_id FROM modak.cutline ORDER BY 1")
    pins = "SELECT table_id, pinned_lake_snapshot_id FROM modak.read_pins WHERE expires_at > now() ORDER BY 1"
    assert database.rows(pins) == published
    assert (
        database.rows("SELECT modak.pin_below(table_id, 9223372036854775806, true) FROM modak.cutline") == [(None,)] * 2
    )
    # Whoever attaches the same moment shares its lease.
    catalog.attach("mirror@latest")
    assert database.rows(pins) == published


def test_there_are_not_more_moments_than_the_limit(mirror: Mirror) -> None:
    limits = mirror.settings.limits.model_copy(update={"served_moments": 1})
    with served(mirror.settings.model_copy(update={"limits": limits})) as catalog:
        first = catalog.attach("mirror@latest")
        assert catalog.ask("/v1/config?warehouse=mirror.main@latest").error[0] == 503
        assert catalog.ask(f"/v1/{first}/namespaces").status == 200
        assert catalog.ask("/v1/config?warehouse=mirror").status == 200
