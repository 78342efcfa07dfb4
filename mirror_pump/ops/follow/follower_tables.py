"""What a follower shows of a table: a document of the lake table with one snapshot, and what makes it out of the one
that is there.

Each table of a follower says by its properties whose it is, and what the mirror made it. So a look at the table tells
whether another program has committed to it since, whatever became of the process that made it so.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)

from mirror_pump.errors import FollowerError, one_line_of
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.next_metadata import follower_metadata
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.lake.storage import StorageOptions, join
from mirror_pump.model import format_lsn
from mirror_pump.source.catalog.followers import Follower
from mirror_pump.source.catalog.published_state import PublishedState

_MIRRORS = "mirror-pump."
"""The beginning of the names of properties that are the mirror's alone."""
FOLLOWER = f"{_MIRRORS}follower"
"""Property of a table, and of a namespace that was made for it: the follower's ID."""
FRONTIER = f"{_MIRRORS}frontier"
"""Property of a table: the frontier that it is as of; of a namespace: that none of its tables is behind."""
_STATE = f"{_MIRRORS}state"
"""Property of a table: a digest of what the mirror made it."""
_METASTORES = ("metadata_location", "previous_metadata_location", "table_type", "EXTERNAL")
"""Names that mean something else among a table's properties in Glue and Hive: which file it is."""
METADATA_KEPT = 10
"""Old metadata files that stay there, for readers that have opened the table by one of them."""


_Update = TypeVar("_Update", bound=BaseModel)


class FollowerTableState(StrEnum):
    """What a follower has under the name of a table, compared with the mirror."""

    SAME = "same"
    """It shows what is published."""
    BEHIND = "behind"
    """It shows a former state, of which the mirror made it."""
    REPLACED = "replaced"
    """It is this follower's, and shows another registration, of which the mirror made it."""
    MISSING = "missing"
    """It is not there."""
    CHANGED = "changed"
    """Another program has committed to it there."""
    FOREIGN = "foreign"
    """A table of this name is there that is not this mirror's."""
    UNREADABLE = "unreadable"
    """It could not be compared."""


class ForeignEntry:
    """What a catalog has under a name, and cannot be a mirrored table: no table of Iceberg's, or none of the lake's."""


@dataclass(frozen=True)
class ShownTable:
    """What a follower is to show of a table."""

    metadata: TableMetadata
    """As pyiceberg has it."""
    content: bytes
    """The same as a metadata file, for a table that is not there yet."""
    location: str
    """Where that file is to be."""
    directory: str
    """The directory of its metadata files, which no sweep looks into."""


@dataclass(frozen=True)
class TableMove:
    """A commit to one table there."""

    table: Table
    """As it was read."""
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    shown: ShownTable
    """What these make it."""


def shown_table(
    follower: Follower, state: PublishedState, directory: str | None, storage: StorageOptions
) -> ShownTable:
    """What a follower is to show of what is published. `directory`: of a table that is there already. Raises
    FollowerError if pyiceberg has no such columns, LakeError."""
    metadata = read_metadata(state.published_location, storage)
    snapshot = metadata.snapshot(state.snapshot_id)
    if snapshot is None:
        raise FollowerError(f"{state.lake_name}: its published metadata lacks its snapshot", "it is tried again")
    directory = directory or join(metadata.location, f"followers/{follower.name}-{uuid.uuid4().hex[:8]}")
    properties = {
        FOLLOWER: follower.follower_id,
        # Engines there may neither delete the mirror's files nor mix theirs in.
        "gc.enabled": "false",
        "write.metadata.path": directory,
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(METADATA_KEPT),
        # An archive snapshot says by itself as of which frontier it is.
        **({} if state.frontier is None or state.has_cutline else {FRONTIER: format_lsn(state.frontier)}),
    }
    try:
        parsed = TableMetadataUtil.parse_raw(follower_metadata(metadata, snapshot, properties).to_json().decode())
    except (ValidationError, ValueError) as error:
        raise FollowerError(
            f"{state.lake_name} cannot follow: pyiceberg does not read its metadata: {one_line_of(error)[:200]}",
            "read the table by the mirror's own catalog; or register it without the columns of such types",
        ) from None
    document = follower_metadata(metadata, snapshot, {**properties, _STATE: _digest(parsed)})
    content = document.to_json()
    location = join(directory, f"00000-{uuid.uuid4()}.metadata.json")
    return ShownTable(TableMetadataUtil.parse_raw(content.decode()), content, location, directory)


def state_of(table: Table | ForeignEntry | None, follower: Follower, table_uuid: str) -> FollowerTableState:
    """Whose the table is that was loaded under the name of a mirrored one. `BEHIND`: the mirror's, in any state."""
    if table is None:
        return FollowerTableState.MISSING
    if isinstance(table, ForeignEntry) or table.metadata.properties.get(FOLLOWER) != follower.follower_id:
        return FollowerTableState.FOREIGN
    metadata = table.metadata
    if metadata.properties.get(_STATE) != _digest(metadata) or set(metadata.refs) - {MAIN_BRANCH}:
        return FollowerTableState.CHANGED
    return FollowerTableState.BEHIND if str(metadata.table_uuid) == table_uuid else FollowerTableState.REPLACED


def move_to(shown: ShownTable, table: Table) -> TableMove | None:
    """The commit that makes the table what it is to show, without updates if it does. None: no commit can do that, so
    it has to be dropped and registered anew."""
    base, target = table.metadata, shown.metadata
    updates = _structure(base, target)
    snapshot = target.current_snapshot()
    if updates is None or snapshot is None or base.location != target.location or isinstance(base, TableMetadataV1):
        return None
    if base.snapshot_by_id(snapshot.snapshot_id) is None:
        lineage = target.format_version >= VECTOR_VERSION
        next_row_id = getattr(base, "next_row_id", None) or 0
        if (snapshot.sequence_number or 0) <= base.last_sequence_number:
            return None
        if lineage and (snapshot.first_row_id is None or snapshot.first_row_id < next_row_id):
            return None
        numbered = snapshot.model_copy(update={"schema_id": _schema_number(base, target, snapshot.schema_id)})
        updates.append(AddSnapshotUpdate(snapshot=numbered))
    if base.current_snapshot_id != snapshot.snapshot_id:
        head = {"ref_name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot_id": snapshot.snapshot_id}
        updates.append(_made(SetSnapshotRefUpdate, **head))
    others = [each.snapshot_id for each in base.snapshots if each.snapshot_id != snapshot.snapshot_id]
    if others:
        updates.append(_made(RemoveSnapshotsUpdate, snapshot_ids=others))
    updates += _property_updates(base, target, moves=bool(updates))
    requirements = (
        AssertTableUUID(uuid=base.table_uuid),
        _made(AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=base.current_snapshot_id),
        _made(AssertCurrentSchemaId, current_schema_id=base.current_schema_id),
        _made(AssertDefaultSpecId, default_spec_id=base.default_spec_id),
    )
    return TableMove(table, requirements, tuple(updates), shown)


def _structure(base: TableMetadata, target: TableMetadata) -> list[TableUpdate] | None:
    """Updates of format, schema and partitioning; None if no updates make these the same."""
    updates: list[TableUpdate] = []
    if target.format_version < base.format_version:
        return None
    if target.format_version > base.format_version:
        updates.append(_made(UpgradeFormatVersionUpdate, format_version=target.format_version))
    if target.schema() != base.schema():
        number = _schema_number(base, target, target.current_schema_id)
        assert number is not None
        if base.schema_by_id(number) is None:
            updates.append(AddSchemaUpdate(schema=target.schema().model_copy(update={"schema_id": number})))
        updates.append(_made(SetCurrentSchemaUpdate, schema_id=number))
    specs = base.specs()
    for spec in sorted(target.partition_specs, key=lambda spec: spec.spec_id):
        if spec.spec_id not in specs:
            if spec.spec_id != max(specs) + 1:
                # The catalog would give it another number than files have.
                return None
            specs[spec.spec_id] = spec
            updates.append(AddPartitionSpecUpdate(spec=spec))
        elif specs[spec.spec_id].fields != spec.fields:
            return None
    if target.default_spec_id != base.default_spec_id:
        updates.append(_made(SetDefaultSpecUpdate, spec_id=target.default_spec_id))
    return updates


def _schema_number(base: TableMetadata, target: TableMetadata, schema_id: int | None) -> int | None:
    """The number that one of the target's schemas has or gets in a catalog, which numbers new schemas by itself: of
    those that are not there, the current one alone is added. None for one that the catalog does not get."""
    schema = None if schema_id is None else target.schema_by_id(schema_id)
    if schema is None:
        return None
    same = next((each.schema_id for each in base.schemas if each == schema), None)
    if same is not None:
        return same
    return max(each.schema_id for each in base.schemas) + 1 if schema == target.schema() else None


def others_properties(base: TableMetadata, target: TableMetadata) -> dict[str, str]:
    """Properties of the table there that other programs have added. They stay."""
    return {
        name: value
        for name, value in base.properties.items()
        if name not in target.properties and not name.startswith(_MIRRORS) and name not in _METASTORES
    }


def _property_updates(base: TableMetadata, target: TableMetadata, *, moves: bool) -> list[TableUpdate]:
    """Properties that the mirror sets. Those that others have added stay. `moves`: whether there are other updates. The
    frontier alone is no reason for a commit."""
    changed = {name: value for name, value in target.properties.items() if base.properties.get(name) != value}
    if not moves and changed.keys() <= {FRONTIER}:
        changed = {}
    updates: list[TableUpdate] = []
    if changed:
        updates.append(SetPropertiesUpdate(updates=changed))
    gone = [name for name in base.properties if name.startswith(_MIRRORS) and name not in target.properties]
    if gone:
        updates.append(RemovePropertiesUpdate(removals=gone))
    return updates


def _made(model: type[_Update], **fields: Any) -> _Update:
    """One of pyiceberg's models, whose aliases hide the names of fields from type checkers."""
    return model.model_validate(fields)


def _digest(metadata: TableMetadata) -> str:
    """Of all by which readers read the table, so that another program's commit changes it."""
    parts = (
        str(metadata.table_uuid),
        metadata.location,
        metadata.format_version,
        metadata.current_snapshot_id,
        [(field.field_id, field.name, str(field.field_type), field.required) for field in metadata.schema().fields],
        [(field.source_id, field.field_id, str(field.transform), field.name) for field in metadata.spec().fields],
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
