"""Views of a table's snapshots, and of the branches and tags that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE, SnapshotSummary
from mirror_pump.model import SequenceNumber, SnapshotId


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A view of one snapshot in a metadata document. Snapshots with the same entry are equal."""

    document: Mapping[str, Any]
    """The snapshot's entry in the metadata document. Not to be changed."""

    @classmethod
    def new(
        cls,
        snapshot_id: int,
        parent: Snapshot | None,
        sequence_number: int,
        timestamp_ms: int,
        summary: Mapping[str, str],
        manifest_list: str,
        schema_id: int,
        row_ids: tuple[int, int] | None = None,
    ) -> Snapshot:
        """A snapshot of a commit. `timestamp_ms` is milliseconds since 1970 UTC, `manifest_list` a location. `row_ids`:
        in a table with row lineage the first row ID that the snapshot may assign, and how many it does."""
        document = {
            "sequence-number": sequence_number,
            "snapshot-id": snapshot_id,
            "timestamp-ms": timestamp_ms,
            "summary": summary,
            "manifest-list": manifest_list,
            "schema-id": schema_id,
        }
        if parent is not None:
            document["parent-snapshot-id"] = parent.snapshot_id
        if row_ids is not None:
            document["first-row-id"], document["added-rows"] = row_ids
        return cls(document)

    @property
    def snapshot_id(self) -> SnapshotId:
        """Random, so it says nothing about the order."""
        return SnapshotId(int(self.document["snapshot-id"]))

    @property
    def parent_id(self) -> SnapshotId | None:
        """The snapshot that it follows; None for a table's first. The history may have lost it."""
        parent = self.document.get("parent-snapshot-id")
        return None if parent is None else SnapshotId(int(parent))

    @property
    def sequence_number(self) -> SequenceNumber:
        """Gives the order of commits; 0 for a snapshot from format version 1."""
        return SequenceNumber(sequence_number_of(self.document))

    @property
    def timestamp_ms(self) -> int:
        """When it was made, milliseconds since 1970 UTC."""
        return int(self.document["timestamp-ms"])

    @property
    def manifest_list(self) -> str:
        """Location of its manifest list."""
        return str(self.document["manifest-list"])

    @property
    def has_manifest_list(self) -> bool:
        """Whether it has one: snapshots of format version 1 may name their manifests instead."""
        return "manifest-list" in self.document

    @property
    def schema_id(self) -> int | None:
        """The schema that it was made under, if it is recorded."""
        recorded_id = self.document.get("schema-id")
        return None if recorded_id is None else int(recorded_id)

    @property
    def summary(self) -> SnapshotSummary:
        """Empty if another engine left it out."""
        return SnapshotSummary(self.document.get("summary") or {})

    @property
    def next_row_id(self) -> int | None:
        """The least row ID that the snapshot certainly did not assign; None in a table without row lineage."""
        first = self.document.get("first-row-id")
        return None if first is None else int(first) + int(self.document.get("added-rows") or 0)

    @property
    def is_archive(self) -> bool:
        """Whether the snapshot was made for the archive branch."""
        return is_archive_entry(self.document)

    def without_schema_id(self) -> Snapshot:
        """The same snapshot, which readers then read with the table's current schema."""
        return Snapshot({key: value for key, value in self.document.items() if key != "schema-id"})


class SnapshotList(Sequence[Snapshot]):
    """The snapshots of a metadata document. Makes a view of a snapshot when it is asked for, and copies nothing."""

    __slots__ = ("_documents",)

    def __init__(self, documents: Sequence[Mapping[str, Any]]) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Snapshot]:
        return map(Snapshot, self._documents)

    def __reversed__(self) -> Iterator[Snapshot]:
        return map(Snapshot, reversed(self._documents))

    @overload
    def __getitem__(self, index: int) -> Snapshot: ...

    @overload
    def __getitem__(self, index: slice) -> SnapshotList: ...

    def __getitem__(self, index: int | slice) -> Snapshot | SnapshotList:
        if isinstance(index, slice):
            return SnapshotList(self._documents[index])
        return Snapshot(self._documents[index])

    def newest_first(self) -> Iterator[Snapshot]:
        """By sequence number."""
        return map(Snapshot, sorted(self._documents, key=sequence_number_of, reverse=True))

    def oldest_first(self) -> Iterator[Snapshot]:
        """By sequence number."""
        return map(Snapshot, sorted(self._documents, key=sequence_number_of))


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A view of a branch or tag."""

    document: Mapping[str, Any]

    @property
    def snapshot_id(self) -> SnapshotId:
        """The snapshot that it names: a branch's head."""
        return SnapshotId(int(self.document["snapshot-id"]))

    @property
    def is_branch(self) -> bool:
        """Whether it is a branch, so that the ancestors of its snapshot belong to it."""
        return self.document.get("type") == "branch"

    @property
    def has_snapshot_age(self) -> bool:
        """Whether it has its own maximum age of snapshots."""
        return self.document.get("max-snapshot-age-ms") is not None


def sequence_number_of(document: Mapping[str, Any]) -> int:
    """The sequence number in a snapshot's entry."""
    number: int = document.get("sequence-number", 0)
    return number


def is_archive_entry(document: Mapping[str, Any]) -> bool:
    """Whether a snapshot's entry is that of an archive snapshot."""
    return ARCHIVE_CUT_LINE in (document.get("summary") or ())
