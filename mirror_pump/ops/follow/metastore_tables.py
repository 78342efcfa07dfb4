"""Tables of catalogs whose clients write metadata files themselves, as pyiceberg's clients of AWS Glue and of Hive do.

What such a catalog names, and what metadata files say, is another program's: pyiceberg would open any file, with a
module that a property of the table names. Here it reads metadata files of the mirror's lake alone, and writes them into
the directory that the mirror has for this follower's table. A pointer moves only from the file that was read.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Collection
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import orjson
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, NoSuchTableError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from mirror_pump.engine.lake_storage import reachable_warehouses
from mirror_pump.errors import LakeError
from mirror_pump.lake.document.metadata_files import json_of, metadata_number, spelled
from mirror_pump.lake.document.next_metadata import moved_document
from mirror_pump.lake.storage import StorageOptions, discard, join, list_files, read_bytes, write_bytes
from mirror_pump.ops.follow.follower_tables import METADATA_KEPT, TableMove, others_properties
from mirror_pump.settings.storage_profiles import below

_METADATA = ".metadata.json"
_UNMOVED_STAY = 3600.0
"""Seconds."""


class ForeignMetadata(Exception):
    """A catalog names a metadata file that is none of the mirror's lake."""


class LakeMetadata(FileIO):
    """The metadata files of the mirror's lake, as pyiceberg opens files. They are written by `write` alone."""

    def __init__(self, storage: StorageOptions, content: bytes = b"") -> None:
        """`content`: of the file that is to be written."""
        super().__init__()
        self.storage = storage
        self.content = content

    def new_input(self, location: str) -> InputFile:
        """Raises ForeignMetadata, LakeError."""
        place = spelled(location)
        roots = [spelled(warehouse.root) for warehouse in reachable_warehouses(self.storage)]
        inside = ".." not in location.split("/") and any(below(place, root) for root in roots)
        if not inside or _METADATA not in location.rpartition("/")[2]:
            raise ForeignMetadata(location)
        content = json_of(read_bytes(location, self.storage))
        # Unpacked already, whatever its name says.
        opened: Any = SimpleNamespace(location="", open=lambda: io.BytesIO(content))
        file: InputFile = opened
        return file

    def write(self, location: str) -> None:
        """Writes `content`. Raises LakeError."""
        write_bytes(location, self.content, self.storage)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError(location)


class MetastoreTables(MetastoreCatalog):
    """Moves tables from what was read of them, within the lake. To be mixed into pyiceberg's client of a catalog."""

    moves_together = False
    rewrites_namespaces = True
    """Whether a change of a namespace's properties puts back all of it, as it was read."""
    refusals: tuple[type[Exception], ...] = (CommitFailedException, ForbiddenError, NoSuchTableError)
    """Errors of a commit that is not made."""
    files: LakeMetadata
    _move: TableMove | None = None
    """What is under way."""
    _staged = ""
    """The metadata file that it writes."""

    def takes(self, _: TableMove) -> bool:
        """Whether the catalog can make this move."""
        return True

    def move(self, move: TableMove) -> None:
        """Moves a table. Raises CommitFailedException if it is not as it was read."""
        self._move, self._staged = move, ""
        try:
            metadata = self.commit_table(move.table, move.requirements, move.updates).metadata
        except self.refusals:
            discard(filter(None, [self._staged]), self.files.storage)
            raise
        logged = {entry.metadata_file for entry in metadata.metadata_log}
        ended = {entry.metadata_file for entry in move.table.metadata.metadata_log} - logged
        # A log may name any file of the lake.
        written = [file for file in ended if file.rpartition("/")[0] == move.shown.directory.rstrip("/")]
        discard(written, self.files.storage)
        if (metadata_number(self._staged) or 0) % METADATA_KEPT == 0:
            self._discard_unmoved(move.shown.directory, {*logged, self._staged})

    def _discard_unmoved(self, directory: str, stay: Collection[str]) -> None:
        """Files of commits that failed without an answer: the catalog might have taken them."""
        with suppress(LakeError):
            files = list(list_files(directory, self.files.storage))
            now = max((file.modified for file in files), default=0.0)
            unmoved = [file.location for file in files if file.modified < now - _UNMOVED_STAY]
            discard([file for file in unmoved if file not in stay], self.files.storage)

    def _load_file_io(self, *_: object, **__: object) -> FileIO:
        return self.files

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:  # noqa: ARG004
        assert isinstance(io, LakeMetadata)
        io.write(metadata_path)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],  # noqa: ARG002
    ) -> StagedTable:
        move = self._move
        if move is None or current_table is None or current_table.metadata_location != move.table.metadata_location:
            raise CommitFailedException("the table is not as it was read")
        for requirement in requirements:
            requirement.validate(move.table.metadata)
        # The mirror's own document: pyiceberg writes none of format version 3.
        content = _content(move)
        metadata = TableMetadataUtil.parse_raw(content.decode())
        number = (metadata_number(move.table.metadata_location) or 0) + 1
        location = self._staged = join(move.shown.directory, f"{number:05d}-{uuid.uuid4()}{_METADATA}")
        return StagedTable(table_identifier, metadata, location, LakeMetadata(self.files.storage, content), self)


def _content(move: TableMove) -> bytes:
    """What the table is to be, as a metadata file, with its former ones and with the properties of other programs."""
    base, target = move.table.metadata, move.shown.metadata
    log = [(entry.metadata_file, entry.timestamp_ms) for entry in base.metadata_log]
    log.append((move.table.metadata_location, base.last_updated_ms))
    properties = {**others_properties(base, target), **target.properties}
    updated_ms = max(base.last_updated_ms, target.last_updated_ms)
    return orjson.dumps(moved_document(orjson.loads(move.shown.content), properties, log, updated_ms))
