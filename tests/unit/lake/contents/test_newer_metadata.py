"""Metadata files that the catalog does not know."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.contents.newer_metadata import NewerMetadata, Promise, UnknownMetadata, unknown_metadata
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
STORAGE = StorageOptions(fsync=False)


def written(
    directory: Path, name: str, *frontiers: str, timeline: int = 1, log: Sequence[str] = (), modified: float = 1000
) -> str:
    """A metadata file; its current snapshot has the last of the frontiers."""
    path = directory / f"{name}.metadata.json"
    summaries = [
        {"mirror-pump.frontier": frontier, "mirror-pump.timeline": str(timeline)}
        if frontier
        else {"mirror-pump.copying": "true"}
        for frontier in frontiers
    ]
    document = {
        **TableMetadata.new(SCHEMA, directory.as_uri(), {}, 1).document,
        "current-snapshot-id": len(frontiers),
        "snapshots": [
            {"snapshot-id": number, "sequence-number": number, "timestamp-ms": 1, "summary": summary}
            for number, summary in enumerate(summaries, 1)
        ],
        "metadata-log": [{"metadata-file": location, "timestamp-ms": 1} for location in log],
    }
    path.write_text(json.dumps(document))
    os.utime(path, (modified, modified))
    return path.as_uri()


def behind(location: str, frontier: int, accepted: float = 0) -> UnknownMetadata:
    return unknown_metadata(location, STORAGE, accepted=accepted, matches=lambda state: state.frontier > frontier)


def test_the_highest_frontier_behind_the_known_file_counts(tmp_path: Path) -> None:
    first = written(tmp_path, "00003-a", "0/900")
    known = written(tmp_path, "00004-b", "0/100", log=[first])
    assert behind(known, 0) == UnknownMetadata(), "what it continues is the table's history"
    newest = written(tmp_path, "00006-c", "0/100", "0/200", "0/300")
    written(tmp_path, "00005-d", "0/200")
    written(tmp_path, "00007-e", "0/300", "")
    (tmp_path / "00008-f.metadata.json").write_text("{ cut off")
    os.utime(tmp_path / "00008-f.metadata.json", (2000, 2000))
    (tmp_path / "snap-9-g.avro").write_text("")
    earlier = (Promise(Lsn(0x100), 1), Promise(Lsn(0x200), 1))
    assert behind(known, 0x100) == UnknownMetadata(NewerMetadata(newest, Promise(Lsn(0x300), 1), earlier), 2000)
    assert behind(known, 0x300) == UnknownMetadata(None, 2000)


def test_a_table_that_went_on_does_not_hide_lost_files(tmp_path: Path) -> None:
    """A compaction on the server that went back takes their numbers again, and those of a longer branch are higher."""
    first = written(tmp_path, "00004-a", "0/100")
    lost = written(tmp_path, "00005-lost", "0/500")
    for number in range(6, 46):
        written(tmp_path, f"{number:05d}-former", "0/200")
    second = written(tmp_path, "00005-b", "0/100", log=[first])
    known = written(tmp_path, "00006-c", "0/100", log=[first, second])
    found = behind(known, 0x400).newest
    assert found is not None
    assert found.location == lost


def test_files_that_were_dealt_with_are_left_out(tmp_path: Path) -> None:
    known = written(tmp_path, "00004-a", "0/100")
    written(tmp_path, "00006-b", "0/300", modified=1500.25)
    newer = written(tmp_path, "00005-c", "0/200", modified=1600)
    found = behind(known, 0x100, accepted=1500.251)
    assert found.newest is not None
    assert (found.newest.location, found.modified) == (newer, 1600)
