"""Makes lake tables differ from their heaps, as a bug would: by a publish that the stream knows nothing of."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.partitioned_files import write_data_files, write_equality_delete_files
from mirror_pump.lake.format.raw_text_columns import narrowed
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.ops.verify.heap_copy import typed_rows
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.guest_publish import GuestPublisher
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.source.relations.relations import resolve_name


def drift(
    settings: Settings,
    name: str,
    *,
    removed: Sequence[tuple[str, ...]] = (),
    added: Sequence[tuple[str | None, ...]] = (),
) -> None:
    """Removes the rows with these keys from the lake, and adds rows to it, all given as texts."""
    with connect(settings.require_dsn(), autocommit=True) as connection:
        table = load_table(connection, resolve_name(connection, name)[1])
        assert table is not None
        storage, schema = lake_storage(settings), LakeSchema.of_table(table)
        data, file_schema = narrowed(typed_rows(added, table.columns, schema), schema)
        keys = typed_rows(removed, table.key_columns, schema).select(schema.key.arrow.names)
        files = SegmentFiles(
            write_data_files(data, file_schema, table.location, storage, table.partitioning),
            write_equality_delete_files(keys, schema, table.location, storage, table.partitioning),
        )
        request = PublishRequest.of(table, ApplyStream((SegmentChange(files),)))
        guest = GuestPublisher(connection, settings.slot, storage)
        with WrittenFiles(storage) as written, written.committing(connection, connection.cancel):
            lock = SlotLock.take(connection, settings.slot)
            guest.land(lock, guest.stage(request, written))
