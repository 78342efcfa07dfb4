"""Fixtures that several kinds of tests share: one server and one Spark per run, one database per test."""

from __future__ import annotations

import gc
import os
import random
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psycopg
import pytest

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner, TaskRunner
from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import FORMAT_VERSION
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests import spark_java
from tests.support import durations, soak_parts
from tests.support.events_table import RetentionTables
from tests.support.memory import in_memory
from tests.support.trusted_extensions import trust_extensions
from tests.support.worker_shares import in_shares, needs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSED = pytest.StashKey[bool]()

_ROOT = Path(__file__).parent
_MIGRATION = _ROOT / "migration"
_SOAK_TIMEOUT = 1800
"""Seconds for a soak test without a limit of its own: a hang must still end, and a busy machine be no failure."""

# No deadline per example: the machine is shared, and the oracle is a real server.
hypothesis.settings.register_profile(
    "default-run",
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default-run"))

# Processes that tests start inherit it: their Spark is just as short-lived.
os.environ |= spark_java.environment()
trust_extensions()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed if none was given, so that the header can print it: runs differ, but each can be repeated."""
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    durations.register(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets fixtures know whether their test passed."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out other parts than the chosen one of the soak tests, and gives these their time. Orders by workers."""
    part = soak_parts.chosen_part(os.environ.get(soak_parts.VARIABLE, ""))
    if part is not None:
        left_out = {item for item in items if soak_parts.part_of(item.path.relative_to(_ROOT).as_posix()) != part}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("soak") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SOAK_TIMEOUT))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        items[:] = [items[place] for place in in_shares(needs_of(items), workers)]


def pytest_collectstart() -> None:
    """Stops the garbage collector until all tests are collected: it would look at everything that is imported again and
    again, for a quarter of the CPU that collecting takes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Takes what was imported and collected out of the rounds of the garbage collector: it stays. Rounds are rarer than
    by default, where they take a thirtieth of the CPU: most of them find next to nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    return f"to draw the same examples again: --hypothesis-seed={config.getoption('--hypothesis-seed')}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The run's PostgreSQL server."""
    # Much of what a test's sessions do is to plan statements: each would plan one up to ten times before it keeps a
    # plan. Users' sessions last long, and have come to such plans.
    settings = {"plan_cache_mode": "force_generic_plan"}
    with EmbeddedPostgres(temporary_in=in_memory(), settings=settings) as server:
        durations.CLOCK.postmaster = server.directory / "data" / "postmaster.pid"
        yield server


@pytest.fixture(scope="session")
def catalog_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database that has the catalog, and nothing else. To copy it is much cheaper than to create one."""
    name = "with_catalog"
    with psycopg.connect(postgres.create_database(name), autocommit=True, cursor_factory=CatalogCursor) as connection:
        migrate(connection)
        # A run of all tests with tables of the other version: MIRROR_PUMP_TEST_FORMAT_VERSION=3 make test
        if FORMAT_VERSION is not None:
            connection.execute(
                f"ALTER TABLE modak.mirror_slots ALTER format_version SET DEFAULT {FORMAT_VERSION}".encode()
            )
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        # Nobody may be connected to it while it is copied.
        connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
    return name


@pytest.fixture
def new_database(
    postgres: EmbeddedPostgres, catalog_template: str, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Database]]:
    """Creates as many new databases as a test needs, and drops them after it, with their slots. Before that, every live
    table of a mirror in them is verified. They have the catalog already, as after an `init` that was interrupted,
    unless the test is marked `empty_database` or is one of migrations."""
    made: list[Database] = []
    stem = re.sub(r"[^a-z0-9]+", "_", request.node.name.lower())[:40].strip("_")
    empty = request.node.get_closest_marker("empty_database") is not None or request.path.is_relative_to(_MIGRATION)

    def make() -> Database:
        # Slots are named by tests, databases by us: the counter distinguishes two runs of one parametrised test.
        name = f"t_{stem}_{os.urandom(3).hex()}"
        postgres.create_database(name, template="template0" if empty else catalog_template)
        made.append(Database(postgres, name))
        if not empty:
            made[-1].execute(
                "UPDATE modak.mirror_secret SET secret = gen_random_uuid()::text || gen_random_uuid()::text"
            )
        return made[-1]

    try:
        with keeping_connections():
            yield make
            # A table that the test has shown to be wrong, or made wrong on purpose, is not verified again.
            if request.node.stash.get(_PASSED, False) and request.node.get_closest_marker("unverified") is None:
                for database in made:
                    assert_verified(database)
    finally:
        for database in made:
            postgres.drop_database(database.name)


@pytest.fixture
def database(new_database: Callable[[], Database]) -> Database:
    """A new database for one test."""
    return new_database()


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """The root URI of an empty lake on the local disk, without a slash at its end."""
    root = tmp_path / "warehouse"
    root.mkdir()
    return root.as_uri()


@pytest.fixture
def retention_tables(database: Database, warehouse: str) -> Iterator[RetentionTables]:
    """Creates a mirror with a table with heap retention, whose cut-line the pump or the test itself moves."""
    tables = RetentionTables(database, warehouse)
    yield tables
    tables.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The run's Spark, with Iceberg's jars; its JVM logs to a file of the run."""
    directory = tmp_path_factory.mktemp("spark")
    session = spark_session(
        SparkSettings(
            # Room for the tasks of `runner`, beside two for queries.
            master="local[6]",
            app_name="mirror-pump-tests",
            log=directory / "spark.log",
            conf={
                "spark.default.parallelism": "2",
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.local.dir": str(directory),
                "spark.sql.shuffle.partitions": "1",
            },
        )
    )
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, database: Database, warehouse: str) -> SparkSession:
    """A Spark session whose catalog `lake` is this test's database, once schema modak is in it."""
    return lake_session(spark, database.dsn, warehouse)


@pytest.fixture
def runner(spark: SparkSession) -> TaskRunner:
    """Runs tasks in the run's Spark, which outlives every pump."""
    return SparkTaskRunner(spark, 4)


@pytest.fixture
def tasks() -> Iterator[ThreadTaskRunner]:
    """Tasks run in threads of this process, without Spark."""
    runner = ThreadTaskRunner()
    yield runner
    runner.close()
