"""The files of a lake table, found and changed without the program: metadata, lists, manifests, and what these name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from proofs.damage.avro_files import AvroFile

Record = dict[str, Any]


def path_of(uri: str) -> Path:
    """The local file of a URI."""
    return Path(uri.removeprefix("file://"))


def replace_content(path: Path, content: bytes) -> None:
    """Writes a file anew: others that are linked to it stay."""
    path.unlink()
    path.write_bytes(content)


@dataclass(frozen=True)
class ManifestFile:
    """A manifest with its line in the manifest list."""

    line: Record
    file: AvroFile

    @property
    def path(self) -> Path:
        return path_of(self.line["manifest_path"])

    @property
    def is_data(self) -> bool:
        return bool(self.line["content"] == 0)

    @property
    def live(self) -> list[Record]:
        """The entries of files that readers need."""
        return [entry for entry in self.file.records if entry["status"] != 2]


class TableFiles:
    """A lake table as of one metadata file. Changes are made in place, and written by the methods that say so."""

    def __init__(self, location: str) -> None:
        self.metadata_path = path_of(location)
        self.metadata: Record = json.loads(self.metadata_path.read_bytes())

    @property
    def snapshot(self) -> Record:
        """The current snapshot."""
        return self.snapshot_of(self.metadata["current-snapshot-id"])

    def snapshot_of(self, snapshot_id: int) -> Record:
        return next(record for record in self.metadata["snapshots"] if record["snapshot-id"] == snapshot_id)

    @property
    def list_path(self) -> Path:
        return path_of(self.snapshot["manifest-list"])

    @cached_property
    def manifest_list(self) -> AvroFile:
        """The manifest list of the current snapshot."""
        return AvroFile.read(self.list_path)

    @cached_property
    def manifests(self) -> list[ManifestFile]:
        return [
            ManifestFile(line, AvroFile.read(path_of(line["manifest_path"]))) for line in self.manifest_list.records
        ]

    def entries(self, content: int) -> Iterator[tuple[ManifestFile, Record]]:
        """The live entries of one content: 0 data, 1 position deletes or vectors; with their manifests."""
        for manifest in self.manifests:
            for entry in manifest.live:
                if entry["data_file"]["content"] == content:
                    yield manifest, entry

    def largest(self, content: int) -> tuple[ManifestFile, Record]:
        """The entry with the most rows."""
        return max(self.entries(content), key=lambda pair: pair[1]["data_file"]["record_count"])

    def file(self, content: int) -> Path:
        """The file of that entry."""
        return path_of(self.largest(content)[1]["data_file"]["file_path"])

    def write_metadata(self) -> None:
        replace_content(self.metadata_path, json.dumps(self.metadata).encode())

    def write_list(self) -> None:
        self.manifest_list.write(self.list_path)

    def write_manifest(self, manifest: ManifestFile) -> None:
        """Under another name, with its line in the list, as a writer that makes a mistake does: other snapshots and
        moments keep theirs."""
        path = manifest.path.with_name(f"wrong-{manifest.path.name}")
        manifest.line["manifest_length"] = manifest.file.write(path)
        manifest.line["manifest_path"] = path.as_uri()
        self.write_list()
