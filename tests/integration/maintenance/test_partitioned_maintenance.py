"""Spark reads and compacts tables that are partitioned by any columns: deletes that apply to every partition, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.maintenance import MIB, NO_UPKEEP, UPKEEP, Maintained
from tests.support.partitioned_orders import ORDERS, OrderChanges, assert_divided, by, unsorted_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDERS = "public.orders"


@pytest.mark.further
@pytest.mark.parametrize(
    "upkeep",
    [
        pytest.param(NO_UPKEEP, id="deletes by key"),
        pytest.param(UPKEEP, id="deletes by position", marks=pytest.mark.further),
    ],
)
def test_spark_reads_and_compacts_them(
    database: Database, warehouse: str, spark: SparkSession, upkeep: dict[str, Any]
) -> None:
    database.execute(*ORDERS)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), **upkeep)
    mirror.register("orders", choices=by("year(created), bucket(2, tenant)", "code, id"))
    maintained = Maintained(mirror, spark)
    changes = OrderChanges(database, 5)
    mirror.catch_up()
    maintained.policy(_ORDERS, rewrite_target_bytes=MIB)
    for _ in range(2):
        changes.some(40)
        mirror.catch_up()
        database.execute("UPDATE orders SET tenant = 'moved', created = created + interval '1 year' WHERE id % 3 = 0")
        mirror.catch_up()
        maintained.assert_equal(_ORDERS)
        before = assert_divided(mirror.location(_ORDERS))
        maintained.maintain(_ORDERS)
        maintained.assert_equal(_ORDERS)
        assert assert_divided(mirror.location(_ORDERS)) <= before
        assert unsorted_files(mirror.location(_ORDERS), "code") == 0
    changes.some()
    mirror.catch_up()
    maintained.assert_equal(_ORDERS)
