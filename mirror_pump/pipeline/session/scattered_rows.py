"""Reports batches and folds whose rows are scattered over many lake partitions of a table."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.operations.add_chunks import AddChunks
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.requests import PublishRequest


def report_scattered(
    observer: Observer, request: PublishRequest, landed: Mapping[TableId, LakeTable], many: int
) -> None:
    """Reports each table of which a publish that landed has changed at least `many` lake partitions. Each of them got a
    small file. Copies and rewrites are not reported: they concern partitions in any number. `landed`: the tables after
    the publish."""
    for table_request in request.tables:
        lake = landed.get(table_request.table.table_id)
        brings_rows = table_request.get(ApplyStream) or table_request.get(FoldCorrections)
        if lake is None or not brings_rows or table_request.get(AddChunks):
            continue
        partitions = lake.summary.changed_partitions
        if partitions >= many:
            observer(Step.PARTITIONS_SCATTERED, table=str(table_request.table.name), partitions=partitions)
