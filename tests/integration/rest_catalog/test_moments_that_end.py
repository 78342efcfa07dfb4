"""Moments whose lease or history ends, and tables that are not part of one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from mirror_pump.lake.document.metadata_files import next_location, read_metadata
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, write_bytes
from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, lake_rows
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.moments import change, two_tables
from tests.support.rest_catalog import ServedMirror, served


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    return two_tables(database, warehouse, tasks)


@pytest.fixture
def catalog(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings) as running:
        yield running


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
        assert database.rows("SELECT * FROM modak.read_pins") == []
        _assert_readable(catalog, message)
    database.execute("DELETE FROM modak.read_pins")


@pytest.mark.further
def test_an_older_moment_does_not_take_the_place_of_one_that_is_gone(mirror: Mirror, database: Database) -> None:
    """The history still has the states before and after it, of both tables."""
    with mirror.pumping():
        _, attached, _ = (change(mirror, value) for value in (1, 2, 3))
    with served(mirror.settings) as catalog:
        path = f"/v1/{catalog.attach(f'mirror@{format_lsn(attached)}')}/namespaces/public/tables"
        loaded = {table: catalog.ask(f"{path}/{table}").document for table in ("a", "b")}
        assert lake_rows(loaded["a"]["metadata-location"]) == [(0,), (1,), (2,)]
    database.execute("DELETE FROM modak.read_pins")
    for table, document in loaded.items():
        _thin(mirror, f"public.{table}", without=document["metadata"]["current-snapshot-id"])
    with served(mirror.settings) as catalog:
        code, _, message = catalog.ask(f"{path}/a").error
        assert (code, "is gone" in message) == (400, True)
        _assert_readable(catalog, message)
    database.execute("DELETE FROM modak.read_pins")


def _assert_readable(catalog: ServedMirror, message: str) -> None:
    """What the answer says to attach instead can be attached, and has both tables."""
    named = re.findall(r"mirror@(?:[0-9A-F]+-[0-9A-F]+|latest)", message)
    assert len(set(named)) >= 2, message
    assert "latest" in named[-1]
    for warehouse in named:
        tables = f"/v1/{catalog.attach(warehouse)}/namespaces/public/tables"
        for table in ("a", "b"):
            assert catalog.ask(f"{tables}/{table}").status == 200, (warehouse, message)


@pytest.mark.further
def test_a_snapshot_that_is_thinned_out_right_after_it_was_found_is_read_nevertheless(
    mirror: Mirror, database: Database
) -> None:
    """By a publish that did not see the pin. Nothing is deleted while it lasts (a sweep refuses), so the moment is as
    it was when it was attached, in every process once somebody has loaded the table."""
    with mirror.pumping():
        past = change(mirror, 1)
        change(mirror, 2)
        change(mirror, 3)
    with served(mirror.settings) as catalog:
        prefix = catalog.attach(f"mirror@{format_lsn(past)}")
        for table in ("a", "b"):
            _thin(mirror, f"public.{table}")
        path = f"/v1/{prefix}/namespaces/public/tables"
        loaded = catalog.ask(f"{path}/a").document
        assert lake_rows(loaded["metadata-location"]) == [(0,), (1,)]
    with served(mirror.settings) as restarted:
        assert restarted.ask(f"{path}/a").document == loaded
        # Of this one nobody has written the file.
        code, _, message = restarted.ask(f"{path}/b").error
        assert code == 400
        assert "does not have the moment" in message
        _assert_readable(restarted, message)
    # So that the mirror can be verified.
    database.execute("DELETE FROM modak.read_pins")


def _thin(mirror: Mirror, table: str, *, without: int | None = None) -> None:
    """Leaves the newest two snapshots in the history, or all but one."""
    old = mirror.location(table)
    metadata = read_metadata(old, StorageOptions())
    kept = metadata.document["snapshots"]
    if without is None:
        kept = kept[-2:]
    else:
        kept = [entry for entry in kept if entry["snapshot-id"] != without]
        assert len(kept) < len(metadata.document["snapshots"])
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
    assert "public.a has failed: its lake ends at frontier" in message
    assert catalog.ask("/v1/mirror/namespaces/public/tables/a").status == 200
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'live' WHERE lake_table = 'a'")
