"""`register --columns-only`: the server itself sends no other column, also of those that come later."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import MirrorPumpError, TableError, UsageError
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.integration.types.test_masks import lake_bytes
from tests.support.table_wishes import parse_choices

MARKER = "Unlisted"


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        'CREATE TABLE t (secret text, id int PRIMARY KEY, v text, hidden text, "a, b" int)',
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT '{MARKER}', g, g, '{MARKER}', g FROM generate_series(1, 20) g",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def only(names: str) -> ColumnChoices:
    return parse_choices([], [], listed=names)


def assert_listed(mirror: Mirror, columns: str = "id, v") -> None:
    heap = [tuple(row) for row in mirror.database.rows(f"SELECT {columns} FROM t")]
    assert_same(heap, mirror.lake("public.t"), "t")


def assert_unsent(mirror: Mirror, since: str) -> None:
    """The server sends nothing of the other columns: a slot with the mirror's publication has no marker."""
    sent = mirror.database.rows(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', %s)",
        (since, identifier(mirror.settings.publication)),
    )
    assert any(b"seen" in bytes(data) for (data,) in sent)
    assert all(MARKER.encode() not in bytes(data) for (data,) in sent)


def test_only_listed_columns_leave_the_server(mirror: Mirror, warehouse: str) -> None:
    database = mirror.database
    with mirror.pumping():
        mirror.register("t", choices=only("id, v"))
        mirror.await_live("public.t")
        database.rows("SELECT pg_create_logical_replication_slot('probe', 'pgoutput')")
        database.execute(
            f"UPDATE t SET v = repeat('seen', 1000), secret = '{MARKER}2' WHERE id < 5",
            f"UPDATE t SET hidden = '{MARKER}3' WHERE id < 8",
            "DELETE FROM t WHERE id = 9",
            f"ALTER TABLE t ADD COLUMN later text DEFAULT '{MARKER}'",
            f"INSERT INTO t (id, v, secret, later) VALUES (30, 'x', '{MARKER}', '{MARKER}')",
            "ALTER TABLE t RENAME COLUMN v TO w",
            "ALTER TABLE t RENAME COLUMN secret TO s",
            "ALTER TABLE t DROP COLUMN hidden",
            "UPDATE t SET w = 'y' WHERE id = 10",
        )
        mirror.await_frontier()
        assert_listed(mirror, "id, w")
        assert_unsent(mirror, "probe")
        database.rows("SELECT pg_drop_replication_slot('probe')")
        mirror.register("t", choices=only("w,id"))
        with pytest.raises(TableError, match="registered with --columns-only id,w"):
            mirror.register("t", choices=only("id"))
    with mirror.pumping():
        database.execute("UPDATE t SET w = w || 'z', later = 'more' WHERE id < 12")
        mirror.await_frontier()
    assert_listed(mirror, "id, w")
    assert assert_verified(database) == 1
    assert all(MARKER.encode() not in content for _, content in lake_bytes(warehouse))


@pytest.mark.further
def test_a_list_is_put_back(mirror: Mirror) -> None:
    database, publication = mirror.database, identifier(mirror.settings.publication)
    with mirror.pumping():
        mirror.register("t", choices=only('id, "a, b"'))
        mirror.await_live("public.t")
        database.execute(f"ALTER PUBLICATION {publication} SET TABLE t", "UPDATE t SET v = 'x' WHERE id = 1")
        await_true(lambda: mirror.state("public.t") == "waiting", 60, "the table does not wait")
        assert 'ADD TABLE "public"."t" ("id", "a, b")' in mirror.error("public.t")
        database.execute(f'ALTER PUBLICATION {publication} SET TABLE t ("a, b", id)')
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert_listed(mirror, 'id, "a, b"')
    database.execute(f"DROP PUBLICATION {publication}", "DELETE FROM t WHERE id < 4")
    initialise(mirror.settings, lambda _: None)
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.TABLE_COPIED_AGAIN), 60, "the table is not copied again")
        mirror.await_live("public.t")
        mirror.await_frontier()
    assert_listed(mirror, 'id, "a, b"')
    assert assert_verified(database) == 1


def test_dropping_a_listed_column(mirror: Mirror) -> None:
    """PostgreSQL refuses it, or takes the table out of the publication: then the table waits."""
    database = mirror.database
    with mirror.pumping():
        mirror.register("t", choices=only("id, v"))
        mirror.await_live("public.t")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            database.execute("ALTER TABLE t DROP COLUMN v")
        database.execute("ALTER TABLE t DROP COLUMN v CASCADE", "INSERT INTO t (id) VALUES (40)")
        await_true(lambda: mirror.state("public.t") == "waiting", 60, "the table does not wait")
        publication = identifier(mirror.settings.publication)
        database.execute(f"ALTER PUBLICATION {publication} ADD TABLE t (id)")
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert_listed(mirror, "id")
    assert assert_verified(database) == 1


def refused(mirror: Mirror, choices: ColumnChoices, **options: Any) -> MirrorPumpError:
    with pytest.raises(TableError) as error:
        mirror.register("t", choices=choices, **options)
    assert error.value.remedy
    (shown,) = preview(mirror.settings, ["t"], TableOptions(choices, options.get("retention")))
    assert str(shown.error) == str(error.value)
    return error.value


def test_what_lists_are_refused_for(mirror: Mirror) -> None:
    assert "not a column" in str(refused(mirror, only("id, nothing")))
    assert "has to be listed" in str(refused(mirror, only("v")))
    assert "rows leave the heap" in str(refused(mirror, only("id"), retention=RetentionOptions(lag="10")))
    mirror.database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert "REPLICA IDENTITY FULL" in str(refused(mirror, only("id, v")))
    with pytest.raises(UsageError, match="does not go with"):
        parse_choices([], ["v"], listed="id")
    with pytest.raises(UsageError, match="not in --columns-only"):
        parse_choices([], [], ["v=sha256"], listed="id")
