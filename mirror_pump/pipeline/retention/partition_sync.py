"""Brings what the catalog knows of a table's partitions into line with the heap, whoever made, dropped or moved them.

A partition that its owner dropped or detached takes no row with it: the lake keeps what it held, and T passes it in its
turn. One that was attached below T is not ours: its further changes become corrections, and it is dropped only if the
lake turns out to hold its rows. One whose trigger is gone is sealed anew.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from mirror_pump.model import MirroredTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import HOT, SEALING, TIERED, TIERING, Attached, Partition, RetentionChoices

_LATE = "attached below T: what it held then is not in the lake"
_UNWATCHED = "its trigger zz_modak_row was dropped or switched off: it is sealed anew"


def reconcile(
    connection: PgConnection, table: MirroredTable, choices: RetentionChoices, stop: Callable[[str], None]
) -> bool:
    """Whether anything was different. `stop` is called with what the table's owner has to mend."""
    assert table.tier is not None
    attached = source.read_attached(connection, table.table_id)
    known = {one.relation_id: one for one in source.read_partitions(connection, table.table_id)}
    moved = False
    try:
        for one in attached:
            if not one.is_table:
                stop(f"partition {one.name} is partitioned itself")
                return moved
            if one.is_default:
                moved |= _default(connection, table, one, stop)
            elif one.relation_id not in known:
                moved |= _new(connection, table, one, choices)
        if not any(one.is_default for one in attached):
            # Its trigger follows with the next look; until then a row that it takes makes that look refuse it.
            with source.limited(connection):
                source.create_default(connection, table.name)
            return True
        for partition in known.values():
            moved |= _known(connection, table, partition)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        # Sessions that use the table now: the next look is soon.
        return moved
    return moved


def _default(connection: PgConnection, table: MirroredTable, one: Attached, stop: Callable[[str], None]) -> bool:
    """Sees to it that the DEFAULT partition routes; one of the owner's must be empty for that."""
    if one.routes:
        return False
    with source.limited(connection):
        connection.execute(f"LOCK TABLE ONLY {one.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
        filled = source.holds_rows(connection, one.name)
        if not filled:
            source.install(connection, table.table_id, one.relation_id, str(one.name), "default")
    if filled:
        stop(f"DEFAULT partition {one.name} holds rows: move them to partitions of their own")
    return not filled


def _new(connection: PgConnection, table: MirroredTable, one: Attached, choices: RetentionChoices) -> bool:
    late = one.lo < choices.cut
    with source.limited(connection):
        if late:
            connection.execute(f"LOCK TABLE ONLY {one.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
        name = source.enter(connection, table.table_id, one, TIERING if late else HOT, _LATE if late else None)
        if late:
            source.install(connection, table.table_id, one.relation_id, name, "cold")
    return True


def _known(connection: PgConnection, table: MirroredTable, partition: Partition) -> bool:
    where = {"table_id": table.table_id, "partition_id": partition.partition_id}
    if partition.name is None:
        return source.run(connection, "gone", where) > 0
    assert partition.bounds is not None
    lo, hi = partition.bounds
    if partition.state in (HOT, SEALING):
        moved = (lo, hi) != (partition.lo, partition.hi)
        unwatched = partition.state == SEALING and not partition.captured
        away = partition.state == HOT and partition.sealed_lsn is not None
        copied = partition.sealed_lsn is not None and partition.sealed_lsn < table.start_lsn
        if moved or unwatched or away or copied:
            reason = _UNWATCHED if unwatched else None
            return source.run(connection, "back", {**where, "lo": lo, "hi": hi, "reason": reason}) > 0
    elif partition.state in (TIERING, TIERED) and not partition.corrected and partition.relation_id is not None:
        # Changes may have gone by; the proof finds out.
        with source.limited(connection):
            source.install(connection, table.table_id, partition.relation_id, partition.partition_id, "cold")
            connection.execute(
                "UPDATE modak.partitions SET state = 'tiering', proven_at = NULL"
                " WHERE table_id = %s AND partition_id = %s",
                (table.table_id, partition.partition_id),
            )
        return True
    return False
