"""A client that attaches a moment sees all tables at one frontier, for as long as it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.moments import by_duckdb, by_pyiceberg, change, two_tables
from tests.support.rest_catalog import ServedMirror, served

_ROUNDS = 3


@pytest.fixture(scope="module")
def standing(shared_database: Database, shared_warehouse: str, shared_tasks: ThreadTaskRunner) -> Mirror:
    return two_tables(shared_database, shared_warehouse, shared_tasks)


@pytest.fixture
def database(shared_database: Database) -> Database:
    return shared_database


@pytest.fixture
def mirror(standing: Mirror) -> Mirror:
    """The module's mirror. Nobody reads a moment of it."""
    standing.database.execute("DELETE FROM modak.read_pins")
    return standing


@pytest.fixture
def base(mirror: Mirror) -> int:
    """A multiple of 1000: neither table has a value above it."""
    ((highest,),) = mirror.database.rows("SELECT max(v) FROM a")
    return (int(highest) // 1000 + 1) * 1000


@pytest.fixture
def catalog(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings) as running:
        yield running


@pytest.mark.parametrize("rounds", [_ROUNDS, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("attached", [by_duckdb, pytest.param(by_pyiceberg, marks=pytest.mark.further)])
def test_tables_that_are_read_one_after_the_other_are_of_one_frontier(
    mirror: Mirror,
    base: int,
    catalog: ServedMirror,
    attached: Callable[[ServedMirror, str], Callable[[str], int]],
    rounds: int,
) -> None:
    """In all rounds, although a transaction on both is published between the two reads. Without a moment in none."""
    newest = attached(catalog, "mirror")
    with mirror.pumping():
        for value in range(base, base + 10 * rounds, 10):
            change(mirror, value)
            moment = attached(catalog, "mirror@now" if value == base else "mirror@latest")
            first, then = moment("a"), newest("a")
            change(mirror, value + 1)
            assert (first, moment("b"), moment("a")) == (value,) * 3
            assert (then, newest("b")) == (value, value + 1)


def test_a_past_moment_is_named_by_a_position_or_a_time(mirror: Mirror, base: int, catalog: ServedMirror) -> None:
    values = {}
    with mirror.pumping():
        for value in range(base, base + 3):
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


def test_a_moment_outlives_the_server(mirror: Mirror, base: int, database: Database, catalog: ServedMirror) -> None:
    """The lease names its snapshots, whatever the history says by then. A load renews it."""
    prefix = catalog.attach("mirror@latest")
    path = f"/v1/{prefix}/namespaces/public/tables/a"
    kept = catalog.ask(path).document["metadata"]["current-snapshot-id"]
    with mirror.pumping():
        change(mirror, base)
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
