"""`register --alter`: the layout of a plain mirrored table changes while it is mirrored, and its rows never do."""

from __future__ import annotations

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.ops.resync.layout_change import LayoutAction, LayoutChange, LayoutWish, alter_layout
from mirror_pump.source.relations.partition_choices import parse_partition_by, parse_sort_by
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.partitioned_orders import (
    ORDERS,
    OrderChanges,
    assert_divided,
    by,
    data_files,
    unsorted_files,
)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(*ORDERS)
    return Mirror.create(database, warehouse, tasks, copy_chunk_bytes=8192, convert_age=0.2)


def altered(mirror: Mirror, partition_by: str | None = None, sort_by: str | None = None) -> LayoutChange:
    """As `--alter` with `--partition-by` and `--sort-by`; empty: without."""
    return alter_layout(
        mirror.settings,
        "orders",
        LayoutWish(
            None if partition_by is None else parse_partition_by(partition_by) if partition_by else (),
            None if sort_by is None else parse_sort_by(sort_by) if sort_by else (),
        ),
        wait=False,
        on_progress=lambda _: None,
    )


def fields_of(location: str) -> list[tuple[str, str]]:
    """Columns and transforms of the lake table's partition spec."""
    table = StaticTable.from_metadata(location)
    return [
        (table.schema().find_column_name(field.source_id) or "", str(field.transform)) for field in table.spec().fields
    ]


def order_of(location: str) -> list[str]:
    table = StaticTable.from_metadata(location)
    return [table.schema().find_column_name(field.source_id) or "" for field in table.sort_order().fields]


@pytest.mark.parametrize("index", [True, pytest.param(False, marks=pytest.mark.further)])
def test_partitions_change_while_the_pump_runs(mirror: Mirror, database: Database, index: bool) -> None:
    """From none to other columns, to the key, with another order, and back to what was there before. Readers have the
    rows of their frontier at every moment."""
    mirror = mirror if index else mirror.with_options(index_memory=0, index_disk=0)
    changes = OrderChanges(database, 5)
    mirror.register("orders")
    with mirror.pumping():
        mirror.await_live("public.orders")
        changes.some()
        for partition_by, sort_by, fields in (
            ("day(created), bucket(4, tenant)", None, [("created", "day"), ("tenant", "bucket[4]")]),
            ("bucket(3, id)", "code, id", [("id", "bucket[3]")]),
            ("bucket(4, tenant)", None, [("tenant", "bucket[4]")]),
            ("", "", []),
            ("day(created), bucket(4, tenant)", "code", [("created", "day"), ("tenant", "bucket[4]")]),
        ):
            change = altered(mirror, partition_by, sort_by)
            assert (change.action, change.partition_by) == (LayoutAction.COPY, partition_by)
            changes.some()
            mirror.await_live("public.orders")
            changes.some()
            mirror.await_frontier()
            mirror.assert_equal("public.orders")
            location = mirror.location("public.orders")
            assert fields_of(location) == fields
            if fields:
                assert assert_divided(location) > 1
        assert order_of(mirror.location("public.orders")) == ["code"]
        assert len(StaticTable.from_metadata(mirror.location("public.orders")).specs()) == 4
    mirror.catch_up()
    mirror.assert_equal("public.orders")
    mirror.assert_sound()


def test_an_order_changes_at_once(mirror: Mirror, database: Database) -> None:
    """Without a copy: the metadata at once, new files from then on."""
    changes = OrderChanges(database, 6)
    mirror.register("orders", choices=by("bucket(2, tenant)"))
    with mirror.pumping():
        mirror.await_live("public.orders")
        files = data_files(mirror.location("public.orders"))
        assert altered(mirror, sort_by="code desc, id").action is LayoutAction.SORT
        location = mirror.location("public.orders")
        assert order_of(location) == ["code", "id"]
        assert data_files(location) >= files
        assert altered(mirror, sort_by="code desc, id").action is LayoutAction.NOTHING
        assert altered(mirror, sort_by="code, id").action is LayoutAction.SORT
        assert altered(mirror, partition_by="bucket(2, tenant)").action is LayoutAction.NOTHING
        changes.some()
        mirror.await_frontier()
        files = data_files(mirror.location("public.orders"))
        database.execute("UPDATE orders SET n = n + 1")
        mirror.await_frontier()
        mirror.assert_equal("public.orders")
        assert order_of(mirror.location("public.orders")) == ["code", "id"]
        assert data_files(mirror.location("public.orders")) - files
        assert unsorted_files(mirror.location("public.orders"), "code", files) == 0
        assert altered(mirror, sort_by="").action is LayoutAction.SORT
        assert order_of(mirror.location("public.orders")) == []
    mirror.assert_sound()
