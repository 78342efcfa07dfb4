"""Compares what heap and lake both hold of a tiered table: partitions below its cut-line that are still in the heap.

Each is compared as before its drop, in one snapshot of the database: the heap's rows with those of the published
snapshot, corrected by modak.delta (mirror_pump.pipeline.retention.drop_proof). The lake holds no row from the cut-line
on, and the heap none of partitions that have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import ConnectionLost, ExpectedOutcome, MirrorPumpError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.ops.verify.comparison import Comparison
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.drop_proof import Prover
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Partition

_KINDS = {"not in the heap": "extra", "not in the lake": "missing", "other values": "different"}
"""The kind of a difference in a report, by how a proof puts it."""


class NotComparable(ExpectedOutcome):
    """A partition could not be compared. The text says which, and why."""


def shared_partitions(connection: PgConnection, table: MirroredTable) -> tuple[Partition, ...]:
    """The partitions that heap and lake both hold."""
    with source_errors(f"looking at partitions of {table.name}"):
        partitions = source.read_partitions(connection, table.table_id)
    return tuple(
        partition
        for partition in partitions
        if not partition.state.is_above_cutline and partition.name is not None and not partition.attached_late
    )


def compare_partitions(
    connection: PgConnection,
    settings: Settings,
    table: MirroredTable,
    partitions: Sequence[Partition],
    runner: TaskRunner,
    storage: StorageOptions,
) -> tuple[Comparison, tuple[Partition, ...]]:
    """Compares these partitions, one after the other. Returns the partitions that were compared, too: one that leaves
    the heap meanwhile is not. Raises NotComparable, and ConnectionLost."""
    dsn = settings.require_dsn()
    prover = Prover(
        lambda: connect(dsn, autocommit=True, application_name="mirror-pump-verify"),
        Tasks(runner, lambda: False),
        storage,
        dsn,
        settings.limits,
    )
    heap_rows, lake_rows = 0, 0
    differences: list[dict[str, Any]] = []
    compared: list[Partition] = []
    for partition in partitions:
        try:
            proof = prover.prove(table, partition)
        except ConnectionLost:
            raise
        except MirrorPumpError as error:
            if all(partition.relation_id != shared.relation_id for shared in shared_partitions(connection, table)):
                continue
            raise NotComparable(f"partition {partition.partition_id} could not be compared: {error}") from error
        compared.append(partition)
        differing_rows = [_difference(table, text) for text in proof.differing]
        heap_rows += proof.rows
        lake_rows += proof.rows + _more_in_the_lake(differing_rows)
        differences += differing_rows
    return Comparison(heap_rows, lake_rows, len(differences), tuple(differences)), tuple(compared)


def _more_in_the_lake(differences: Sequence[dict[str, Any]]) -> int:
    """How many rows more the lake has, as far as a proof names differing rows."""
    kinds = [difference["kind"] for difference in differences]
    return kinds.count("extra") - kinds.count("missing")


def _difference(table: MirroredTable, text: str) -> dict[str, Any]:
    """One differing row, of which a proof gives the key and how it differs."""
    key, _, words = text.rpartition(": ")
    names = [column.name for column in table.key_columns]
    parts = key.split(", ") if len(names) > 1 else [key]
    named = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {", ".join(names): key}
    return {"key": named, "kind": _KINDS.get(words, "different"), "columns": {}}


def compared_text(partitions: Sequence[Partition]) -> str:
    """What was compared, for people."""
    if not partitions:
        return "nothing: no partition is in the heap and in the lake"
    names = ", ".join(partition.partition_id for partition in partitions)
    return f"partitions that heap and lake both hold: {names}"
