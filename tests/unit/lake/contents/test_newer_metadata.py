"""Metadata files that the catalog does not know."""

from __future__ import annotations

import json
from pathlib import Path

from mirror_pump.lake.contents.newer_metadata import NewerMetadata, newest_unknown
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn

STORAGE = StorageOptions(fsync=False)


def written(directory: Path, name: str, summary: dict[str, str]) -> str:
    document = {
        "format-version": 2,
        "current-snapshot-id": 1,
        "snapshots": [{"snapshot-id": 1, "sequence-number": 1, "summary": summary}],
    }
    (directory / name).write_text(json.dumps(document))
    return (directory / name).as_uri()


def test_the_highest_frontier_behind_the_known_file_counts(tmp_path: Path) -> None:
    written(tmp_path, "00003-a.metadata.json", {"mirror-pump.frontier": "0/900"})
    known = written(tmp_path, "00004-b.metadata.json", {"mirror-pump.frontier": "0/100"})
    assert newest_unknown(known, STORAGE) is None, "older files are the table's history"
    newest = written(tmp_path, "00006-c.metadata.json", {"mirror-pump.frontier": "0/300"})
    written(tmp_path, "00005-d.metadata.json", {"mirror-pump.frontier": "0/200"})
    written(tmp_path, "00007-e.metadata.json", {"mirror-pump.copying": "true"})
    (tmp_path / "00008-f.metadata.json").write_text("{ cut off")
    (tmp_path / "snap-9-g.avro").write_text("")
    assert newest_unknown(known, STORAGE) == NewerMetadata(newest, Lsn(0x300))
