"""`mirror-pump policy set TABLE format_version 3`: upgrades the lake table of a mirrored table, in metadata.

No file is rewritten, and readers see the same rows: position-delete files apply until a commit deletes rows of their
data files, whose deletion vectors then have theirs too (mirror_pump.lake.deletes.row_deletes). Every commit from then
on is of the new version: one that was staged on the old metadata does not land
(mirror_pump.ops.resync.metadata_change). A table that is copied again is refused, since the copy builds on metadata of
its own. There is no way back but a copy into a new lake table.
"""

from __future__ import annotations

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import TableError
from mirror_pump.lake.document.next_metadata import with_format_version
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import MirroredTable
from mirror_pump.ops.register.format_versions import refuse_downgrade, refuse_upgrade
from mirror_pump.ops.register.unregistration import registered_table
from mirror_pump.ops.resync.metadata_change import MetadataChange, change_metadata
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pump_channel import RESYNC, notify_pump
from mirror_pump.source.connect import connect, source_errors


def upgrade(settings: Settings, name: str, version: int, *, confirmed: bool) -> bool:
    """Gives a table's lake table this format version. Returns whether it had another one.

    Raises TableError, having done nothing, for a table that is not registered, that has a later version, or that is
    being copied again, and without `confirmed` if the table has an earlier one.
    """
    storage = lake_storage(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-alter") as connection:
        with source_errors(f"upgrading {name}"):
            candidate = registered_table(connection, name)

        def plan(table: MirroredTable) -> MetadataChange[bool]:
            refuse_downgrade(table, version)
            if table.format_version == version:
                return MetadataChange(result=False)
            if not confirmed:
                raise TableError(
                    f"with format version {version} the lake table of {table.name} is no more for engines that read"
                    f" version {table.format_version} only, and there is no way back but a copy of its rows: unregister"
                    " it, and register it again",
                    "docs/readers.md says which engines read it; with --yes it is upgraded",
                )

            def upgraded(metadata: TableMetadata, old: str, now_ms: int) -> TableMetadata:
                # Another engine may have upgraded it since the last commit.
                same = metadata.format_version == version
                return metadata if same else with_format_version(metadata, version, old, now_ms)

            def record() -> None:
                refuse_upgrade(connection, table, version)
                notify_pump(connection, RESYNC)

            return MetadataChange(result=True, metadata=upgraded, record=record)

        return change_metadata(connection, settings, candidate, storage, plan)
