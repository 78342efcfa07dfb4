"""Synchronizes the catalog's partitions of a table with the heap, no matter who created, dropped or moved them.

A partition that its owner dropped or detached takes no row with it: the lake keeps its rows, and the cut-line passes it
in its turn, or the partition that was put in its place. What comes there replaces the kept rows by key
(mirror_pump.lake.contents.kept_ranges), and the others are the lake's alone, as those of a truncated partition.

The rows of a partition that was attached below the cut-line become corrections, those that it held then and its later
changes: sql/functions/late_partitions.sql says why no row is missed. With more rows than that, it is compared with the
lake, and stays out of it if they differ. A partition whose trigger is gone is sealed again. One on both sides of the
cut-line (MERGE PARTITIONS) stops the table's retention: corrections of its upper rows would come in addition to the
stream, and its lower rows cannot be told to be the lake's. One that was attached again with other bounds counts as
taken away, and as a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg

from mirror_pump.model import MirroredTable, Tier
from mirror_pump.partition_life import PartitionState
from mirror_pump.source.connect import PgConnection, limited
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Attached, Partition, RetentionChoices

_UNWATCHED = "its trigger zz_modak_row was dropped or switched off: it is sealed again"


def reconcile(
    connection: PgConnection,
    table: MirroredTable,
    choices: RetentionChoices,
    stop: Callable[[str], None],
    most_late_bytes: int,
) -> bool:
    """Returns whether anything was different. Calls `stop` with the problem if the table's owner has to fix
    something. `most_late_bytes`: a partition that was attached below the cut-line becomes corrections up to this
    size. Raises CutlineWrong."""
    assert table.tier is not None
    attached = source.read_attached(connection, table.table_id)
    partitions = source.read_partitions(connection, table.table_id)
    source.require_passed(table, partitions, choices.cut)
    recorded = {partition.relation_id for partition in partitions}
    problem: str | None = None
    moved = False
    try:
        for leaf in attached:
            if not leaf.is_table:
                problem = problem or f"partition {leaf.name} is partitioned itself"
            elif _is_across(table.tier, choices.cut, leaf):
                problem = problem or (
                    f"partition {leaf.name} lies on both sides of the cut-line: changes of its rows below do not reach"
                    " the lake. Split it there, or detach it and insert its upper rows into a partition of their own"
                )
            elif leaf.is_default:
                moved |= _default(connection, table, leaf, stop)
            elif leaf.relation_id not in recorded:
                moved |= _new(connection, table, leaf, choices)
        if problem is not None:
            stop(problem)
            return moved
        if not any(leaf.is_default for leaf in attached):
            # Its trigger is installed at the next look. If the partition takes a row before that, that look refuses it.
            with limited(connection):
                source.require_registered(connection, table)
                new_partitions.create_default(connection, table.name)
            return True
        for partition in partitions:
            moved |= _follow_recorded(connection, table, partition, choices.cut, most_late_bytes)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        # Other sessions are using the table. The next look is soon.
        return moved
    return moved


def _is_across(tier: Tier, cut: int, leaf: Attached) -> bool:
    return not leaf.is_default and replace(tier, cut=cut).moved and leaf.lo < cut < leaf.hi


def _default(connection: PgConnection, table: MirroredTable, leaf: Attached, stop: Callable[[str], None]) -> bool:
    """Ensures that the DEFAULT partition routes rows. A DEFAULT partition of the owner's must be empty for that."""
    if leaf.routes:
        return False
    with limited(connection):
        connection.execute(f"LOCK TABLE ONLY {leaf.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
        filled = source.holds_rows(connection, leaf.relation_id)
        if not filled:
            source.install(connection, table, leaf.relation_id, str(leaf.name), "default")
    if filled:
        stop(f"DEFAULT partition {leaf.name} holds rows: move them to partitions of their own")
    return not filled


def _new(connection: PgConnection, table: MirroredTable, leaf: Attached, choices: RetentionChoices) -> bool:
    with limited(connection):
        if leaf.hi <= choices.cut:
            source.take_late(connection, table, leaf)
        else:
            source.enter(connection, table, leaf)
    return True


def _follow_recorded(
    connection: PgConnection, table: MirroredTable, partition: Partition, cut: int, most_late_bytes: int
) -> bool:
    where = {"table_id": table.table_id, "partition_id": partition.partition_id}
    if partition.name is None:
        if source.run(connection, "replaced", where):
            source.run(connection, "forget_captured", {"table_id": table.table_id})
            return True
        return source.run(connection, "gone", where) > 0
    assert partition.bounds is not None
    lo, hi = partition.bounds
    moved = (lo, hi) != (partition.lo, partition.hi)
    if moved and (hi <= cut or not partition.state.is_above_cutline):
        # The next look enters it as a new one.
        with limited(connection):
            source.require_registered(connection, table)
            source.run(connection, "release", where)
        return True
    if partition.state.is_above_cutline:
        unwatched = partition.state is PartitionState.SEALING and not partition.captured
        away = partition.state is PartitionState.HOT and partition.sealed_lsn is not None
        copied = partition.sealed_lsn is not None and partition.sealed_lsn < table.start_lsn
        if moved or unwatched or away or copied:
            reason = _UNWATCHED if unwatched else None
            return source.run(connection, "back", {**where, "lo": lo, "hi": hi, "reason": reason}) > 0
    elif not partition.corrected and partition.relation_id is not None:
        with limited(connection):
            source.require_registered(connection, table)
            source.run(connection, "unwatched", where)
        return True
    elif partition.attached_late:
        return source.correct_late(connection, table, partition, most_late_bytes)
    return False
