"""Clients' changes of tables in a lake catalog: what the protocol's updates make of a table's metadata.

Invariant: a change is made on the metadata that met all its requirements, and on no other. They are looked at in the
metadata that the catalog's compare-and-swap builds on; if that moves meanwhile, they are looked at again in the new
one. A table stays in its directory, and in the format that the library writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.exceptions import ValidationError as UpdateRefused
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata as UpdatedMetadata
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1, TableMetadataV3, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)

from mirror_pump.lake.document.metadata_files import metadata_directory, read_any_version
from mirror_pump.lake.document.next_metadata import with_unknown_keys
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.lake.storage import exists
from mirror_pump.rest_catalog.added_numbers import numbered
from mirror_pump.rest_catalog.protocol import bad_request, commit_failed, forbidden, no_such_table
from mirror_pump.tables.catalogs.lake_catalog import (
    LakeCatalog,
    MetadataPointer,
    PointerChange,
    RowCatalog,
    TableIdentifier,
    TableMoved,
)
from mirror_pump.tables.catalogs.table_directories import require_new, with_digits, within_warehouse
from mirror_pump.tables.metadata.pyiceberg_documents import document_of, new_document, parsed_document
from mirror_pump.tables.metadata.variant_type import with_variant_schemas, with_variant_types
from mirror_pump.tables.table.file_names import is_within
from mirror_pump.tables.table.table import LAKE_RETRIES

_UPDATE_ERRORS = (ValidationError, UpdateRefused, ValueError, TypeError, KeyError, NotImplementedError)

_FAILED = {
    "assert-create": "Requirement failed: table already exists",
    "assert-table-uuid": "Requirement failed: UUID does not match",
    "assert-ref-snapshot-id": "Requirement failed: branch or tag changed",
    "assert-last-assigned-field-id": "Requirement failed: last assigned field id changed",
    "assert-current-schema-id": "Requirement failed: current schema changed",
    "assert-last-assigned-partition-id": "Requirement failed: last assigned partition id changed",
    "assert-default-spec-id": "Requirement failed: default partition spec changed",
    "assert-default-sort-order-id": "Requirement failed: default sort order changed",
}
"""How the messages of other catalogs begin, for people who know these."""


class CreateTableRequest(BaseModel):
    """What a client sends to create a table."""

    name: str
    location: str | None = None
    columns: Schema = Field(alias="schema")
    partition_spec: PartitionSpec | None = Field(default=None, alias="partition-spec")
    write_order: SortOrder | None = Field(default=None, alias="write-order")
    stage_create: bool | None = Field(default=None, alias="stage-create")
    properties: dict[str, str] | None = None

    @field_validator("columns", mode="before")
    @classmethod
    def _with_variants(cls, document: JsonValue) -> Any:
        return with_variant_types(document)


class UpdateTableRequest(BaseModel):
    """What a client sends to change a table, or to create one that it has prepared."""

    requirements: tuple[TableRequirement, ...] = ()
    updates: tuple[TableUpdate, ...] = ()

    @field_validator("updates", mode="before")
    @classmethod
    def _with_variants(cls, documents: JsonValue) -> Any:
        if not isinstance(documents, list):
            return documents
        return [with_variant_schemas(update) if isinstance(update, dict) else update for update in documents]

    @property
    def creates(self) -> bool:
        return any(requirement.type == "assert-create" for requirement in self.requirements)


@dataclass(frozen=True)
class TableUpdates:
    """A client's change of one table."""

    table: TableIdentifier
    request: UpdateTableRequest
    by_name: bool = False
    """Whether a table that it creates is in the directory that its name gives."""


class TableCommits:
    """Makes clients' changes. Threads share it."""

    def __init__(self, catalog: LakeCatalog) -> None:
        self._catalog = catalog

    def prepared(self, table: TableIdentifier, request: CreateTableRequest) -> TableMetadata:
        """The metadata of the table that a client asks for. Raises ProtocolError."""
        try:
            made = new_table_metadata(
                schema=request.columns,
                partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                sort_order=request.write_order or UNSORTED_SORT_ORDER,
                location=self._new_location(table, request.location),
                properties=dict(request.properties or {}),
            )
        except _UPDATE_ERRORS as error:
            raise bad_request(f"{table} cannot be created: {error}") from error
        _check_format(table, made)
        metadata = new_document(made, request.columns)
        self._check_place(table, metadata, None)
        return metadata

    def _new_location(self, table: TableIdentifier, location: str | None) -> str:
        """Root URI of a table that is to be made. `location`: as the client asks for it."""
        if location and isinstance(self._catalog, RowCatalog):
            return with_digits(within_warehouse(location, self._catalog.warehouse))
        return (location or self._catalog.table_location(table)).rstrip("/")

    def create(self, table: TableIdentifier, metadata: TableMetadata) -> MetadataPointer:
        """Raises TableMoved if the table exists."""
        (pointer,) = self._catalog.commit([PointerChange(table, None, metadata)])
        assert pointer is not None
        return pointer

    def commit(self, changes: Sequence[TableUpdates]) -> Sequence[MetadataPointer]:
        """All changes or none. Raises ProtocolError if a table does not meet its requirements, TableMoved if others
        always came first, and LakeError."""
        made = LAKE_RETRIES.call(
            lambda: self._catalog.commit([self._change(change) for change in changes]),
            lambda error: isinstance(error, TableMoved),
        )
        return [pointer for pointer in made if pointer is not None]

    def _change(self, change: TableUpdates) -> PointerChange:
        """The next metadata of a table, upon its newest."""
        base = self._catalog.load(change.table)
        if base is None and not change.request.creates:
            raise no_such_table(change.table.namespace, change.table.name)
        stored = None if base is None else read_any_version(base.metadata_location, self._catalog.storage)
        if stored is not None and stored.format_version > VECTOR_VERSION:
            raise bad_request(
                f"{change.table} has Iceberg format version {stored.format_version}, which is only read here"
            )
        parsed = None if stored is None else _parsed(change.table, stored)
        try:
            for requirement in change.request.requirements:
                _require(requirement, parsed)
        except CommitFailedException as error:
            raise commit_failed(f"{_FAILED[requirement.type]} ({change.table}: {error})") from error
        updates = (
            change.request.updates if parsed is None else numbered(str(change.table), change.request.updates, parsed)
        )
        _require_next_row_id(change, parsed)
        try:
            made = update_table_metadata(
                *_upgraded(parsed, updates),
                enforce_validation=parsed is None,
                metadata_location=None if base is None else base.metadata_location,
            )
        except _UPDATE_ERRORS as error:
            raise bad_request(f"{change.table} cannot be changed like that: {error}") from error
        _check_format(change.table, made)
        metadata = _document(made, stored, parsed)
        if stored is None and change.by_name and isinstance(self._catalog, RowCatalog):
            # But for the digits at the end.
            chosen, by_name = (at[:-12] for at in (metadata.location, self._catalog.table_location(change.table)))
            if chosen != by_name:
                raise forbidden(f"{change.table} would not be where its name says: only who may write all tables may")
        self._check_place(change.table, metadata, stored)
        if stored is None:
            self._check_lists(change.table, metadata)
        return PointerChange(change.table, base, metadata)

    def _check_lists(self, table: TableIdentifier, metadata: TableMetadata) -> None:
        """Raises ProtocolError unless the snapshots of a new table are there: a request that is sent again, as its
        answer was lost, must not bring back a table whose files have been removed since."""
        for snapshot in metadata.snapshots:
            location = snapshot.manifest_list
            if not is_within(location, metadata.location) or not exists(location, self._catalog.storage):
                raise bad_request(f"{table}: {location[:500]} is no manifest list in {metadata.location}")

    def _check_place(self, table: TableIdentifier, metadata: TableMetadata, before: TableMetadata | None) -> None:
        """Raises ProtocolError and DirectoryRefused unless the table is, and its metadata files are to be, in its own
        directory: no client decides where this process writes."""
        home, reason = metadata.location.rstrip("/"), "its history has its files there, so it stays"
        if before is not None:
            home = before.location.rstrip("/")
        elif isinstance(self._catalog, RowCatalog):
            require_new(home, self._catalog.warehouse, self._catalog.storage)
        else:
            home, reason = self._catalog.table_location(table).rstrip("/"), "a table's name is its directory here"
        if metadata.location.rstrip("/") != home:
            raise bad_request(f"{table} is in {home}: {reason}")
        directory = metadata_directory(metadata)
        if (before is None or directory != metadata_directory(before)) and directory != f"{home}/metadata":
            raise bad_request(f"write.metadata.path of {table}: its metadata files are in {home}/metadata")


def _require(requirement: TableRequirement, metadata: UpdatedMetadata | None) -> None:
    """Raises CommitFailedException if the requirement is not met."""
    if metadata is not None and isinstance(requirement, AssertRefSnapshotId) and not metadata.snapshots:
        # The library allows only `main` in a table without snapshots; the protocol asks whether the reference exists.
        if requirement.snapshot_id is not None:
            raise CommitFailedException(
                f"Requirement failed: branch or tag {requirement.ref} is missing, expected {requirement.snapshot_id}"
            )
        return
    requirement.validate(metadata)


def _parsed(table: TableIdentifier, stored: TableMetadata) -> UpdatedMetadata:
    """Raises ProtocolError for metadata that the updates' library does not know, such as columns of new types."""
    try:
        return parsed_document(stored)
    except _UPDATE_ERRORS as error:
        raise bad_request(f"{table} cannot be changed here: {error}") from error


def _require_next_row_id(change: TableUpdates, metadata: UpdatedMetadata | None) -> None:
    """Raises ProtocolError (409) if another commit, to another branch, has assigned row IDs that a new snapshot
    assigns: the client is to number its rows again."""
    next_row_id = None if metadata is None else getattr(metadata, "next_row_id", None)
    for update in change.request.updates:
        if isinstance(update, AddSnapshotUpdate) and next_row_id is not None:
            first = update.snapshot.first_row_id
            if first is not None and first < next_row_id:
                raise commit_failed(
                    f"Requirement failed: row IDs from {first} on were assigned concurrently ({change.table})"
                )


def _upgraded(
    metadata: UpdatedMetadata | None, updates: Sequence[TableUpdate]
) -> tuple[UpdatedMetadata, tuple[TableUpdate, ...]]:
    """What the updates are made on, None for a new table, and the updates. One to format version 3 is made here: the
    library, which knows the version, does not make it."""
    to_vectors = any(
        isinstance(update, UpgradeFormatVersionUpdate) and update.format_version == VECTOR_VERSION for update in updates
    )
    if to_vectors:
        updates = [update for update in updates if not isinstance(update, UpgradeFormatVersionUpdate)]
    if metadata is None:
        # What a new table's updates begin with is the version of the format.
        if to_vectors:
            return TableMetadataV3.model_construct(last_column_id=-1, next_row_id=0), tuple(updates)
        return TableMetadataV1.model_construct(last_column_id=-1, schema=Schema()), tuple(updates)
    if to_vectors and metadata.format_version < VECTOR_VERSION:
        document = with_variant_schemas(metadata.model_dump(by_alias=True))
        metadata = TableMetadataUtil.parse_obj({**document, "format-version": VECTOR_VERSION})
    return metadata, tuple(updates)


def _check_format(table: TableIdentifier, metadata: UpdatedMetadata) -> None:
    if metadata.format_version > VECTOR_VERSION:
        raise bad_request(
            f"{table} would have Iceberg format version {metadata.format_version}; {VECTOR_VERSION} is the newest that"
            " is written here"
        )


def _document(
    made: UpdatedMetadata, before: TableMetadata | None = None, parsed: UpdatedMetadata | None = None
) -> TableMetadata:
    """The document of changed metadata, with what another engine put in and the updates' library does not know."""
    understood: Mapping[str, JsonValue] = {} if parsed is None else parsed.model_dump(by_alias=True)
    return with_unknown_keys(document_of(made), before, understood)
