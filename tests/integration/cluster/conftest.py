"""A Spark cluster for the tests of a module, and for each test a mirror in S3 whose pump is a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mirror_pump.testing.database import Database
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests import spark_java
from tests.support.cluster_mirror import ClusterMirror
from tests.support.held_writes import HoldingS3Server, holding_s3_server
from tests.support.spark_cluster import SparkCluster, spark_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers."""
    with spark_cluster(tmp_path_factory.mktemp("cluster"), workers=2, java_options=spark_java.options()) as running:
        yield running


@pytest.fixture
def s3() -> Iterator[HoldingS3Server]:
    with holding_s3_server() as server:
        yield server


@pytest.fixture
def mirror(
    cluster: SparkCluster,
    database: Database,
    s3: HoldingS3Server,
    tasks: ThreadTaskRunner,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ClusterMirror]:
    """An initialised mirror. The password of its database is known to the driver's environment only."""
    given = conninfo_to_dict(database.dsn)
    password = str(given.pop("password"))
    made = ClusterMirror.create(
        cluster, database, s3, tasks, tmp_path_factory.mktemp("pump"), make_conninfo("", **given), password
    )
    yield made
    made.close()
