"""What the published snapshot of a table, and pins on it, promise."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.lake.document.snapshot_thinning import ARCHIVE_SNAPSHOTS_KEPT
from mirror_pump.ops.retain.retention import resume
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Row, Steps, assert_same, lake_rows
from tests.support.maintenance import Maintained, age
from tests.support.promise_table import PromiseTable
from tests.support.retention_table import WIDTH
from tests.support.seam_scene import PIN, by_pyiceberg
from tests.support.table_modes import TableModes

pytestmark = pytest.mark.further

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY: LiteralString = (
    "SELECT t, s, location, snapshot, line"
    " FROM (SELECT DISTINCT ON (xid) * FROM audit.cutlines WHERE table_id = %s ORDER BY xid, seen DESC) c ORDER BY seen"
)
"""The states of a table's cut-line and published snapshot after each transaction."""


def snapshots(location: str) -> list[int]:
    """IDs of the snapshots that a metadata file knows, the oldest first, by pyiceberg."""
    return [snapshot.snapshot_id for snapshot in StaticTable.from_metadata(location).metadata.snapshots]


def test_every_commit_produces_a_new_snapshot(modes: TableModes) -> None:
    """And leaves the former ones as they were."""
    table = modes.mirrored
    states: list[tuple[int, str, list[Row]]] = []
    with modes.pumping():
        for turn in range(4):
            table.put(450, next(modes.keys), f"commit {turn}")
            modes.mirror.await_frontier()
            location = modes.mirror.location("public.mirrored")
            states.append((snapshots(location)[-1], location, table.model()))
    assert len({snapshot for snapshot, _, _ in states}) == 4
    for snapshot, location, rows in states:
        metadata = StaticTable.from_metadata(location).metadata
        assert metadata.current_snapshot_id == snapshot
        assert_same(rows, lake_rows(location, modes.duckdb), f"the snapshot {snapshot}")
    assert [snapshot for snapshot, _, _ in states] == [
        snapshot for snapshot in snapshots(states[-1][1]) if snapshot in {state[0] for state in states}
    ]


def test_the_catalog_has_the_snapshot_that_fits_the_cut_line_next_to_it(modes: TableModes) -> None:
    """As an ID, in the table's own history, and as a metadata file whose only snapshot it is."""
    for table in modes.divided:
        ((t, s, location, snapshot),) = modes.database.rows(
            "SELECT tier_key_hi, lake_snapshot_id, lake_props ->> 'metadata_location', lake_props ->> 'snapshot_id'"
            " FROM modak.cutline WHERE table_id = %s",
            (table.table_id,),
        )
        assert str(s) == snapshot
        assert snapshots(location) == [s]
        assert s in snapshots(modes.mirror.location(f"public.{table.name}"))
        rows = lake_rows(location, modes.duckdb)
        assert_same(rows, by_pyiceberg(location) or rows, "by pyiceberg")
        assert t - WIDTH <= max(row[0] for row in rows) < t
        modes.assert_exact(table)


def test_cut_line_and_snapshot_advance_together_in_one_transaction(modes: TableModes) -> None:
    """No transaction has ever left one without the other: over all that this process has done."""
    for table in modes.divided:
        table.grow()
    with modes.pumping():
        modes.await_settled()
    for table in modes.divided:
        states = modes.database.rows(HISTORY, (table.table_id,))
        advances = 0
        for (t, s, location, _, line), (next_t, next_s, next_location, snapshot, next_line) in pairwise(states):
            assert snapshot == str(next_s)
            assert (s == next_s) == (location == next_location), "the snapshot moved without its file"
            if next_t != t:
                advances += 1
                assert next_s != s, "the cut-line moved without its snapshot"
            if next_line != line:
                assert next_s != s, "the retention line moved without its snapshot"
        assert advances > 2


def test_a_query_pins_both_so_nothing_changes_under_a_running_read(modes: TableModes) -> None:
    """By a row of modak.read_pins. The read goes on over folds, merges of files and an advance of the cut-line."""
    table = modes.tiered
    with modes.folding():
        pass
    ((pin, t, s, location),) = modes.database.rows(
        "SELECT pin_id, t, s, metadata_location FROM modak.pin('tiered', in_one_snapshot => true)"
    )
    assert modes.database.rows(
        "SELECT pinned_tier_key_hi, pinned_lake_snapshot_id, expires_at > now() FROM modak.read_pins WHERE pin_id = %s",
        (pin,),
    ) == [(t, s, True)]
    served = lake_rows(location, modes.duckdb)
    steps = Steps()
    try:
        with modes.pumping(steps, fold_age=0.0, merge_bytes=1 << 20):
            table.grow()
            modes.until(lambda: table.cut == t + WIDTH, "the cut-line goes on")
            # How many files a merge takes depends on those that are there.
            for turn in range(60):
                table.put(t - 40 + turn % 3, turn, f"turn {turn}")
                modes.await_folded()
                if steps.count(Step.MERGED):
                    break
            assert steps.count(Step.MERGED), "small files are merged"
        assert table.published != location
        assert lake_rows(location, modes.duckdb) == served
        assert_same(served, by_pyiceberg(location) or served, "by pyiceberg")
        modes.assert_exact(table)
    finally:
        modes.database.rows("SELECT modak.release(%s)", (pin,))
    with modes.pumping():
        modes.await_settled()


@pytest.mark.soak
def test_compaction_and_expiry_change_nothing_under_a_running_read(modes: TableModes, spark: SparkSession) -> None:
    """Maintenance rewrites the files and expires all that may expire: what is pinned may not, until it is released."""
    table = modes.tiered
    maintained = Maintained(modes.mirror, spark)
    maintained.policy("public.tiered", snapshot_retention_hours=0, snapshot_min_retained=1)
    root = Path(modes.mirror.settings.require_warehouse().removeprefix("file://"))

    def maintain() -> None:
        age([path for path in root.rglob("*") if path.is_file()], 24 * 365)
        assert not maintained.maintain("public.tiered").errors

    ((pin, s, location),) = modes.database.rows(
        "SELECT pin_id, s, metadata_location FROM modak.pin('tiered', in_one_snapshot => true)"
    )
    served = lake_rows(location, modes.duckdb)
    with modes.pumping(fold_age=0.0, merge_bytes=0):
        # More published snapshots than stay without a pin.
        for turn in range(2 * ARCHIVE_SNAPSHOTS_KEPT):
            table.put(table.cut - 40 + turn % 10, turn, f"turn {turn}")
            modes.await_folded()
    for _ in range(2):
        maintain()
        assert s in snapshots(modes.mirror.location("public.tiered"))
        assert lake_rows(location, modes.duckdb) == served
        assert_same(served, by_pyiceberg(location) or served, "by pyiceberg")
        modes.assert_exact(table)
    modes.database.rows("SELECT modak.release(%s)", (pin,))
    with modes.pumping(fold_age=0.0, merge_bytes=0):
        # A commit leaves out what nobody needs any more.
        table.put(table.cut - 40, 1, "once more")
        modes.await_folded()
    maintain()
    assert s not in snapshots(modes.mirror.location("public.tiered")), "nobody needs it any more"
    modes.assert_exact(table)


def holds(modes: TableModes, table: PromiseTable, reader: str) -> bool:
    """Whether the cut-line of the table waits for this reader."""
    reasons: LiteralString = "SELECT reason FROM modak.partitions WHERE table_id = %s AND reason IS NOT NULL"
    return any(reader in reason for (reason,) in modes.database.rows(reasons, (table.table_id,)))


def test_pins_end_with_their_transaction_or_expire_so_a_crashed_client_stalls_nothing_forever(
    modes: TableModes,
) -> None:
    """A client that dies before it commits its pin leaves none. One that dies later leaves a pin that lasts as long as
    it says, a quarter of an hour by default, and protects nothing then."""
    table = modes.tiered
    where = {"table_oid": table.table_id}
    with modes.pumping():
        modes.await_settled()
        crashing = modes.database.connect(autocommit=False)
        backend = crashing.info.backend_pid
        pinned = crashing.execute(PIN, where).fetchone()
        assert pinned is not None
        table.grow()
        modes.until(partial(holds, modes, table, f"process {backend}"), "the cut-line waits for the reader")
        crashing.close()
        modes.await_settled()
        assert table.cut == pinned[1] + WIDTH
        assert modes.database.rows("SELECT * FROM modak.read_pins WHERE pin_id = %s", (pinned[0],)) == []

        with modes.database.connect() as client:
            row = client.execute("SELECT pin_id, t FROM modak.pin('tiered')").fetchone()
        assert row is not None
        pin, t = row
        assert modes.database.rows(
            "SELECT expires_at - started_at = interval '15 minutes' FROM modak.read_pins WHERE pin_id = %s", (pin,)
        ) == [(True,)]
        table.grow()
        modes.until(partial(holds, modes, table, f"pin {pin} of a reader"), "the cut-line waits for the pin")
        assert table.cut == t
        # As if the quarter of an hour were over.
        modes.database.rows("UPDATE modak.read_pins SET expires_at = now() WHERE pin_id = %s RETURNING 1", (pin,))
        resume(modes.mirror.settings, ())
        modes.await_settled()
        assert table.cut == t + WIDTH
        # `status` counts it for an hour.
        assert modes.database.rows("SELECT expired_pins FROM modak.status WHERE table_name = 'tiered'") == [(1,)]
        modes.database.rows("DELETE FROM modak.read_pins WHERE pin_id = %s RETURNING 1", (pin,))
    modes.assert_exact(table)
