"""The seam protocol's catalog, table by table: each column that consumers by others rely on is there, with its meaning.

The columns and sentences are those of the protocol, not of our documents: a column that is renamed together with its
document would still fail here.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database

PROTOCOL = {
    "schema_meta": "version",
    "storage_profiles": "profile_name lake_format warehouse lake_config credential_ref is_default",
    "tables": "table_id schema_name table_name primary_key_cols tier_key_col partition_scheme lake_format"
    " lake_table_ref storage_profile mode publication_name slot_name heap_retention_lag lake_retention_lag keep_heap"
    " maintenance_policy",
    "cutline": "table_id tier_key_hi lake_snapshot_id replicated_lsn retention_line lake_props",
    "partitions": "table_id tier_key_lo tier_key_hi state",
    "delta": "table_id pk op tier_key old_tier_key version payload",
    "read_pins": "pin_id table_id pinned_lake_snapshot_id pinned_tier_key_hi expires_at",
    "op_log": "op_id table_id op_kind phase lake_snapshot_id details",
    "load_labels": "table_id label state",
    "maintenance_requests": "table_id requested_by",
    "lake_stats": "table_id stats warnings policy",
    "copy_progress": "table_id consistent_point last_pk chunks_done",
    "status": "table_id schema_name table_name mode cutline_t cutline_s mirror_frontier retention_line"
    " cutline_updated_at delta_backlog read_pins copying partition_states",
}
PORTABLE = {"bigint", "integer", "smallint", "text", "boolean", "jsonb", "ARRAY", "timestamp with time zone", "uuid"}
"""Types that every engine reads through its Postgres scanner."""

TIERED, MIRRORED = 1, 2
"""Registered tables of the two modes."""


@pytest.fixture
def catalog(database: Database) -> Database:
    with database.connect(autocommit=False) as connection:
        migrate(connection)
    database.execute(
        f"""INSERT INTO modak.tables (table_id, schema_name, table_name, primary_key_cols, tier_key_col,
                                     partition_scheme, lake_format, lake_table_ref, mode, publication_name, slot_name)
            VALUES ({TIERED}, 'public', 'a', '{{id}}', 'at', '{{}}', 'iceberg', 'public.a', 'tiered', NULL, NULL),
                   ({MIRRORED}, 'public', 'b', '{{id}}', 'id', '{{}}', 'iceberg', 'public.b', 'mirrored', 'p', 's')""",
    )
    return database


def refuses(database: Database, statement: str) -> None:
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.IntegrityError)):
        database.execute(statement)


def test_every_table_and_column_of_the_protocol_is_there(catalog: Database) -> None:
    types = {
        (table, column): type_
        for table, column, type_ in catalog.rows(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'modak'"
        )
    }
    for table, columns in PROTOCOL.items():
        for column in columns.split():
            assert (table, column) in types, f"modak.{table}.{column}"
            assert types[table, column] in PORTABLE, f"modak.{table}.{column}"


def test_there_is_one_default_profile_which_leaves_the_warehouse_to_the_environment(catalog: Database) -> None:
    assert catalog.rows("SELECT profile_name, warehouse, lake_format FROM modak.storage_profiles WHERE is_default") == [
        ("default", "", None)
    ]
    refuses(catalog, "INSERT INTO modak.storage_profiles (profile_name, warehouse, is_default) VALUES ('x', '', true)")
    catalog.execute("INSERT INTO modak.storage_profiles (profile_name, warehouse) VALUES ('x', ''), ('y', '')")
    refuses(catalog, f"UPDATE modak.tables SET storage_profile = 'none' WHERE table_id = {TIERED}")


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (TIERED, "publication_name = 'p'"),
        (TIERED, "slot_name = 's'"),
        (TIERED, "heap_retention_lag = 1"),
        (MIRRORED, "lake_retention_lag = 1"),
        (MIRRORED, "keep_heap = true"),
        (MIRRORED, "mode = 'other'"),
    ],
)
def test_columns_of_a_mode_stay_empty_in_the_other(catalog: Database, table: int, change: str) -> None:
    refuses(catalog, f"UPDATE modak.tables SET {change} WHERE table_id = {table}")


def test_columns_of_a_mode_serve_it(catalog: Database) -> None:
    catalog.execute(
        f"UPDATE modak.tables SET lake_retention_lag = 5 WHERE table_id = {TIERED}",
        f"UPDATE modak.tables SET lake_retention_lag = NULL, keep_heap = true WHERE table_id = {TIERED}",
        f"UPDATE modak.tables SET heap_retention_lag = 5 WHERE table_id = {MIRRORED}",
    )


def test_the_frontier_and_the_retention_line_may_be_unknown(catalog: Database) -> None:
    catalog.execute(f"INSERT INTO modak.cutline (table_id, tier_key_hi, lake_snapshot_id) VALUES ({TIERED}, 10, 7)")
    assert catalog.rows(
        "SELECT cutline_t, cutline_s, mirror_frontier, retention_line, delta_backlog, read_pins, copying,"
        f" partition_states FROM modak.status WHERE table_id = {TIERED}"
    ) == [(10, 7, None, None, 0, 0, False, None)]
    insert = "INSERT INTO modak.cutline (table_id, tier_key_hi, lake_snapshot_id)"
    refuses(catalog, f"{insert} VALUES ({MIRRORED}, NULL, 7)")


def test_partitions_go_through_the_states_of_the_protocol(catalog: Database) -> None:
    for number, state in enumerate(("hot", "sealing", "tiering", "tiered", "dropped")):
        catalog.execute(
            "INSERT INTO modak.partitions (table_id, partition_id, tier_key_lo, tier_key_hi, state)"
            f" VALUES ({TIERED}, 'p{number}', {number}, {number + 1}, '{state}')"
        )
    assert catalog.rows(f"SELECT partition_states FROM modak.status WHERE table_id = {TIERED}") == [
        ({"hot": 1, "sealing": 1, "tiering": 1, "tiered": 1, "dropped": 1},)
    ]
    refuses(catalog, "UPDATE modak.partitions SET state = 'gone'")


def test_a_key_has_one_correction_whose_versions_come_from_one_sequence(catalog: Database) -> None:
    insert = (
        "INSERT INTO modak.delta (table_id, pk, op, tier_key, version, payload)"
        f" VALUES ({TIERED}, '1', 0, 5, nextval('modak.delta_version'), '{{}}')"
    )
    catalog.execute(insert)
    refuses(catalog, insert)
    ((first,),) = catalog.rows("SELECT version FROM modak.delta")
    assert catalog.rows("SELECT nextval('modak.delta_version')")[0][0] > first


def test_a_pin_can_be_inserted_as_the_protocol_says(catalog: Database) -> None:
    catalog.execute(f"INSERT INTO modak.cutline (table_id, tier_key_hi, lake_snapshot_id) VALUES ({TIERED}, 10, 7)")
    catalog.execute(
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '15 minutes' FROM modak.cutline c"
        f" WHERE c.table_id = {TIERED}"
    )
    pins = catalog.rows("SELECT pinned_tier_key_hi, pinned_lake_snapshot_id, pin_id IS NOT NULL FROM modak.read_pins")
    assert pins == [(10, 7, True)]
    refuses(
        catalog,
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        f" VALUES ({TIERED}, 7, 10, NULL)",
    )


def test_the_journal_has_the_kinds_of_the_protocol(catalog: Database) -> None:
    for kind in ("tiering", "compaction", "maintenance", "retention", "ingest", "load"):
        catalog.execute(
            "INSERT INTO modak.op_log (op_id, table_id, op_kind, phase)"
            f" VALUES (gen_random_uuid(), {TIERED}, '{kind}', 'x')"
        )
    refuses(catalog, "UPDATE modak.op_log SET op_kind = 'other'")


def test_a_label_is_there_once_for_a_table(catalog: Database) -> None:
    catalog.execute(f"INSERT INTO modak.load_labels (table_id, label, state) VALUES ({TIERED}, 'etl', 'staged')")
    catalog.execute(f"INSERT INTO modak.load_labels (table_id, label, state) VALUES ({MIRRORED}, 'etl', 'committed')")
    refuses(catalog, f"INSERT INTO modak.load_labels (table_id, label, state) VALUES ({TIERED}, 'etl', 'staged')")


def test_a_table_has_one_request_for_maintenance_and_the_first_claim_gets_it(catalog: Database) -> None:
    request = f"INSERT INTO modak.maintenance_requests (table_id, requested_by) VALUES ({TIERED}, 'a')"
    catalog.execute(request)
    refuses(catalog, request)
    claim = f"DELETE FROM modak.maintenance_requests WHERE table_id = {TIERED} RETURNING requested_by"
    assert catalog.rows(claim) == [("a",)]
    assert catalog.rows(claim) == []


def _rows_of_a_table(database: Database) -> Iterator[tuple[str, int]]:
    for table, columns in PROTOCOL.items():
        if table not in ("tables", "status") and "table_id" in columns.split():
            ((count,),) = database.rows(f"SELECT count(*) FROM modak.{table} WHERE table_id = {TIERED}")
            yield table, count


def test_everything_of_a_table_goes_with_its_registration(catalog: Database) -> None:
    catalog.execute(
        f"INSERT INTO modak.cutline (table_id, tier_key_hi, lake_snapshot_id) VALUES ({TIERED}, 10, 7)",
        "INSERT INTO modak.partitions (table_id, partition_id, tier_key_lo, tier_key_hi, state)"
        f" VALUES ({TIERED}, 'p', 0, 1, 'hot')",
        f"INSERT INTO modak.delta (table_id, pk, op, tier_key, version) VALUES ({TIERED}, '1', 1, 5, 1)",
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        f" VALUES ({TIERED}, 7, 10, now())",
        f"INSERT INTO modak.op_log (op_id, table_id, op_kind, phase) VALUES (gen_random_uuid(), {TIERED}, 'load', 'x')",
        f"INSERT INTO modak.load_labels (table_id, label, state) VALUES ({TIERED}, 'etl', 'staged')",
        f"INSERT INTO modak.maintenance_requests (table_id, requested_by) VALUES ({TIERED}, 'a')",
        f"INSERT INTO modak.lake_stats (table_id, stats) VALUES ({TIERED}, '{{}}')",
        f"INSERT INTO modak.copy_progress (table_id, consistent_point) VALUES ({TIERED}, 1)",
    )
    assert all(count == 1 for _, count in _rows_of_a_table(catalog))
    catalog.execute(f"DELETE FROM modak.tables WHERE table_id = {TIERED}")
    assert all(count == 0 for _, count in _rows_of_a_table(catalog))
