"""Reads the files below a table's directory that may have a row, and says which states need those that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from mirror_pump.errors import LakeError, UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.document.metadata_files import spelled
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.manifests.manifest_list import Manifest, listed_manifests
from mirror_pump.lake.storage import StorageOptions, exists, list_files
from mirror_pump.ops.where.reaching_states import ReachedFile, RootKind, RowState, SearchedRoot, StateKind
from mirror_pump.ops.where.searched_values import SearchedValues

_NO_ROWS = (".metadata.json", ".avro", ".puffin", ".crc", "/version-hint.text")
"""How the names of files end that have no rows. Manifests have bounds of columns: maintenance writes them again."""
_READABLE = ".parquet"
_NEVER = datetime.max.replace(tzinfo=UTC)
_PARALLEL = 8
"""Files that are read at once: of a remote store most of the time is waiting."""


@dataclass(frozen=True)
class RowFile(JsonDocument):
    """A file that has the row, deleted or not."""

    location: str
    states: tuple[StateKind, ...]
    """The kinds of the states that need it."""


@dataclass(frozen=True)
class UnreadFile(JsonDocument):
    """A file that may have the row."""

    location: str
    error: LakeError
    """Why it could not be read."""


def schemas_of(root: SearchedRoot) -> list[LakeSchema]:
    """All that the lake table has had; none if nothing is known of it."""
    return [] if root.metadata is None else root.metadata.readable_schemas


class FileSearch:
    """Reads the files of one directory after the other, and collects the states that need those with the row."""

    def __init__(self, storage: StorageOptions, texts: Mapping[str, str]) -> None:
        self._storage = storage
        self._texts = texts
        self._states: dict[tuple[StateKind, str | None], RowState] = {}
        self.files: list[RowFile] = []
        self.unread: list[UnreadFile] = []
        self.files_read = 0
        self.files_left_out = 0
        """By their bounds, and position deletes, which have no values."""

    @property
    def states(self) -> list[RowState]:
        """The states, each once, with what ends it last."""
        return list(self._states.values())

    def look_into(self, root: SearchedRoot, described: SearchedRoot) -> None:
        """Read the files of a directory. `described`: that whose schemas name the columns. Raises UsageError for a
        column that the table itself does not have, and LakeError if the metadata cannot be read."""
        try:
            # The names of a feed's schemas come last: its columns of old rows have no others.
            search = SearchedValues(self._texts, schemas_of(described), schemas_of(root))
        except UsageError as error:
            if root.kind is RootKind.TABLE:
                raise
            remedy = "look there by other columns, or remove the files: `mirror-pump unregister --list` names them"
            self.unread.append(UnreadFile(root.location, LakeError(f"nothing was read there: {error}", remedy)))
            return

        def has_row(file: ReachedFile) -> bool | LakeError:
            if not file.location.endswith(_READABLE):
                return LakeError("it is no Parquet file", "look again: a program may be writing it, or has died then")
            try:
                return search.is_in(file.location, self._storage)
            except LakeError as error:
                return error

        files, left_out = _reached_files(root, search, self._storage)
        self.files_left_out += left_out
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="where") as pool:
            for file, result in zip(files, pool.map(has_row, files), strict=True):
                self.files_read += 1
                if isinstance(result, LakeError):
                    # What no snapshot needs may be half written, and may go at any time.
                    if file.snapshots or exists(file.location, self._storage):
                        self.unread.append(UnreadFile(file.location, result))
                elif result:
                    self._add(file, sorted(root.reaching(file), key=lambda state: (state.kind, state.name or "")))

    def _add(self, file: ReachedFile, states: Sequence[RowState]) -> None:
        self.files.append(RowFile(file.location, tuple(dict.fromkeys(state.kind for state in states))))
        for (kind, name), alike in groupby(states, key=lambda state: (state.kind, state.name)):
            stored = self._states.get((kind, name))
            last = max([*([] if stored is None else [stored]), *alike], key=lambda state: state.ends_at or _NEVER)
            self._states[kind, name] = replace(last, files=1 + (0 if stored is None else stored.files or 0))


def _reached_files(
    root: SearchedRoot, search: SearchedValues, storage: StorageOptions
) -> tuple[list[ReachedFile], int]:
    """The files that may have such a row, each once, and the number of the others. Memory: some 300 bytes a file, and
    one manifest. Raises LakeError."""
    snapshots: dict[str, int] = {}
    manifests: dict[str, Manifest] = {}
    for place, snapshot in enumerate(root.snapshots):
        for manifest in listed_manifests(snapshot, storage):
            manifests[manifest.path] = manifest
            snapshots[manifest.path] = snapshots.get(manifest.path, 0) | 1 << place
    needed: dict[str, int] = {}
    candidates: dict[str, tuple[str, int | None]] = {}
    """Of the files that may have the row the URI, and of a feed's the day."""
    for manifest in manifests.values():
        for file in Listing(storage, search.field_ids).files([manifest]).get(manifest.path, ()):
            path = spelled(file.path)
            if path not in needed and _may_have_rows(file) and search.may_be_in(file):
                candidates[path] = file.path, _day(file) if root.kind is RootKind.FEED else None
            needed[path] = needed.get(path, 0) | snapshots[manifest.path]
    files = [ReachedFile(location, needed[path], None, day) for path, (location, day) in candidates.items()]
    files += [
        ReachedFile(stored.location, 0, stored.modified)
        for stored in list_files(root.location, storage)
        if spelled(stored.location) not in needed and not stored.location.endswith(_NO_ROWS)
    ]
    return files, len(needed) - len(candidates)


def _may_have_rows(file: LiveFile) -> bool:
    return file.content is not FileContent.POSITION_DELETES


def _day(file: LiveFile) -> int | None:
    """The day of a feed's file, counted from 1970: its partition."""
    return int(file.partition[0]) if len(file.partition) == 1 else None
