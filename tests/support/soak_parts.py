"""The parts of `make soak`, each of which is run by its name: `make soak PART=kills`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

VARIABLE = "SOAK_PART"
"""Environment variable with the part to be run; all of them without it."""
OTHERS = "others"
"""Tests that no other part has."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "kills": (
        "acceptance/test_kills",
        "acceptance/test_resync_kills",
        "acceptance/test_returning_tables",
        "acceptance/test_lake_faults",
        "acceptance/test_terminated_backends",
        "integration/ingest/",
        "integration/retention/test_restore_heap",
    ),
    "modes": ("acceptance/test_mode_properties", "acceptance/test_readers_of_modes"),
    "properties": (
        "acceptance/test_change_feeds",
        "acceptance/test_schema_properties",
        "acceptance/test_mixed_properties",
    ),
    "types": ("acceptance/test_type_properties", "integration/types/"),
    "reads": (
        "acceptance/test_clickhouse",
        "acceptance/test_concepts",
        "acceptance/test_foreign_readers",
        "acceptance/test_reads",
        "acceptance/test_resync_readers",
        "acceptance/test_seam_invariants",
        "integration/loads/test_loads_while_leaving",
        "integration/reads/",
        "integration/rest_catalog/",
    ),
    "lake": (
        "acceptance/test_delete_conversion",
        "acceptance/test_file_merge",
        "acceptance/test_lake_criteria",
        "integration/lake/",
        "integration/maintenance/",
    ),
    "servers": (
        "integration/cli/",
        "integration/cluster/",
        "integration/deploy/",
        "integration/failover/",
        "integration/storage/",
        "integration/without_stream/",
    ),
    "volume": (
        "acceptance/test_large_transaction",
        "integration/loads/test_load_http",
        "integration/schema/test_many_dropped_tables",
        "integration/stream/test_large_rows",
        "integration/stream/test_transactions",
    ),
}
"""How paths below tests/ begin that belong to a part. Those of the first part that fits count."""


def part_of(path: str) -> str:
    """The part that has a file; `path` is relative to tests/."""
    return next((part for part, beginnings in PARTS.items() if path.startswith(beginnings)), OTHERS)


def chosen_part(value: str) -> str | None:
    """The part that the variable's value names; None for all. Raises UsageError for an unknown name."""
    if value and value not in (*PARTS, OTHERS):
        names = ", ".join(("further", *PARTS, OTHERS, "rounds"))
        raise pytest.UsageError(f"{value!r} is no part of `make soak`: {names}")
    return value or None
