"""Table metadata: history thinned by rule, logs bounded, everything unknown carried along."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import LakeError
from mirror_pump.lake.format.metadata import (
    COLD_CUT,
    HistoryRetention,
    current_snapshot,
    new_metadata,
    new_snapshot_id,
    next_location,
    read_metadata,
    snapshot_of,
    thin,
    with_snapshot,
)
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = 1_760_000_000_000


def _snapshot(number: int, at_ms: int) -> dict[str, Any]:
    return {
        "snapshot-id": 1000 + number,
        "sequence-number": number,
        "timestamp-ms": at_ms,
        "manifest-list": "",
        "summary": {},
    }


def _grown(times: list[int], retention: HistoryRetention, keep: frozenset[int] = frozenset()) -> dict[str, Any]:
    metadata = new_metadata(SCHEMA, "file:///t", {}, times[0])
    for number, at_ms in enumerate(times, 1):
        metadata = with_snapshot(metadata, _snapshot(number, at_ms), f"file:///t/{number}", keep, retention)
    return metadata


def test_history_of_a_commit_a_second_is_bounded_and_even() -> None:
    times = list(range(NOW - 3 * HOUR, NOW, 1000))
    metadata = _grown(times, HistoryRetention())
    kept = [snapshot["timestamp-ms"] for snapshot in metadata["snapshots"]]
    assert kept[-100:] == times[-100:]
    older = kept[:-100]
    minutes = [at for at in older if NOW - at < HOUR - MINUTE]
    assert 55 <= len(minutes) <= 61
    assert {(b - a) // 1000 for a, b in itertools.pairwise(minutes)} == {60}
    assert len(older) - len(minutes) <= 5, "hours beyond"


def test_beyond_the_last_hour_kept_nothing_stays() -> None:
    times = list(range(NOW - 9 * DAY, NOW, HOUR // 2))
    kept = [snapshot["timestamp-ms"] for snapshot in _grown(times, HistoryRetention(newest=3))["snapshots"]]
    assert min(kept) > NOW - 7 * DAY - HOUR
    assert len(kept) == pytest.approx(7 * 24 + 3, abs=3)


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=60), st.integers(1, 10), st.sets(st.integers(1, 60)))
def test_thinning_keeps_the_newest_the_held_and_settles(gaps: list[int], newest: int, held: set[int]) -> None:
    times = [NOW + sum(gaps[: n + 1]) for n in range(len(gaps))]
    snapshots = [_snapshot(number, at_ms) for number, at_ms in enumerate(times, 1)]
    ids = {1000 + number for number in held}
    retention = HistoryRetention(newest=newest)
    kept = thin(snapshots, ids, times[-1], retention)
    assert kept[-newest:] == snapshots[-newest:]
    assert [snapshot for snapshot in snapshots if snapshot["snapshot-id"] in ids and snapshot not in kept] == []
    assert thin(kept, ids, times[-1], retention) == kept
    assert kept == sorted(kept, key=lambda entry: entry["sequence-number"])


def test_pinned_and_referenced_snapshots_stay() -> None:
    metadata = new_metadata(SCHEMA, "file:///t", {}, NOW)
    retention = HistoryRetention(newest=2, minutes_for_ms=0, hours_for_ms=0)
    for number in range(1, 10):
        metadata = with_snapshot(metadata, _snapshot(number, NOW + number), f"l{number}", frozenset({1003}), retention)
        if number == 5:
            metadata["refs"] = {**metadata["refs"], "audit": {"type": "tag", "snapshot-id": 1005, "max-ref-age-ms": 7}}
    assert [snapshot["sequence-number"] for snapshot in metadata["snapshots"]] == [3, 5, 8, 9]
    assert metadata["refs"]["audit"] == {"type": "tag", "snapshot-id": 1005, "max-ref-age-ms": 7}
    assert metadata["refs"]["main"] == {"type": "branch", "snapshot-id": 1009}


def test_archive_snapshots_stay_from_the_oldest_pinned_one_on_and_the_newest_ten() -> None:
    snapshots = [{**_snapshot(number, NOW), "summary": {COLD_CUT: "0"}} for number in range(1, 31)]
    retention = HistoryRetention(newest=1, minutes_for_ms=0, hours_for_ms=0)

    def kept(held: set[int]) -> list[int]:
        return [snapshot["sequence-number"] for snapshot in thin(snapshots, held, NOW, retention)]

    assert kept({1030}) == list(range(21, 31))
    assert kept({1030, 1012, 1018}) == list(range(12, 31))
    assert kept({1030, 1025}) == list(range(21, 31))


def test_the_snapshot_log_has_no_gap_and_the_metadata_log_a_bound() -> None:
    metadata = _grown([NOW + n * 1000 for n in range(300)], HistoryRetention())
    assert [snapshot["snapshot-id"] for snapshot in metadata["snapshot-log"]] == [1000 + n for n in range(201, 301)]
    assert len(metadata["metadata-log"]) == 100
    assert metadata["metadata-log"][-1]["metadata-file"] == "file:///t/300"
    metadata["properties"] = {"write.metadata.previous-versions-max": "5"}
    assert len(with_snapshot(metadata, _snapshot(301, NOW), "x", frozenset(), HistoryRetention())["metadata-log"]) == 5


def test_the_old_document_is_not_changed_and_unknown_fields_are_carried() -> None:
    metadata = {**new_metadata(SCHEMA, "file:///t", {"a": "b"}, NOW), "encryption-keys": [{"key-id": "1"}]}
    before = orjson.dumps(metadata)
    after = with_snapshot(metadata, _snapshot(1, NOW), "x", frozenset(), HistoryRetention())
    assert orjson.dumps(metadata) == before
    assert after["encryption-keys"] == [{"key-id": "1"}]
    assert after["properties"] == {"a": "b"}


def test_statistics_leave_with_their_snapshot() -> None:
    retention = HistoryRetention(newest=1, minutes_for_ms=0, hours_for_ms=0)
    metadata = with_snapshot(new_metadata(SCHEMA, "f", {}, NOW), _snapshot(1, NOW), "x", frozenset(), retention)
    metadata["statistics"] = [{"snapshot-id": 1001}]
    held = with_snapshot(metadata, _snapshot(2, NOW), "x", frozenset({1001}), retention)
    assert held["statistics"] == [{"snapshot-id": 1001}]
    assert with_snapshot(metadata, _snapshot(2, NOW), "x", frozenset(), retention)["statistics"] == []


def test_snapshots_are_found_by_id() -> None:
    metadata = _grown([NOW, NOW + 1], HistoryRetention())
    assert current_snapshot(metadata) == snapshot_of(metadata, 1002)
    assert snapshot_of(metadata, 5) is None
    assert current_snapshot(new_metadata(SCHEMA, "f", {}, NOW)) is None
    assert 0 < new_snapshot_id(metadata) < 2**63


@pytest.mark.parametrize(
    ("old", "prefix"),
    [
        (None, "00000-"),
        ("file:///t/metadata/00041-a.metadata.json", "00042-"),
        ("file:///t/metadata/v7.metadata.json", "00008-"),
        ("file:///t/metadata/odd.metadata.json", "00001-"),
    ],
)
def test_metadata_files_are_numbered(old: str | None, prefix: str) -> None:
    metadata = new_metadata(SCHEMA, "file:///t", {}, NOW)
    location = next_location(metadata, old)
    assert location.startswith(f"file:///t/metadata/{prefix}")
    assert location.endswith(".metadata.json")
    metadata["properties"]["write.metadata.path"] = "file:///elsewhere"
    assert next_location(metadata, old).startswith("file:///elsewhere/")


def test_metadata_is_read_compressed_or_not_and_damage_is_reported(tmp_path: Path) -> None:
    document = new_metadata(SCHEMA, "file:///t", {}, NOW)
    file = tmp_path / "m"
    location = file.as_uri()
    for content in (orjson.dumps(document), gzip.compress(orjson.dumps(document))):
        file.write_bytes(content)
        assert read_metadata(location, StorageOptions()) == document
    for damaged in (b"{", b"[]", b"{}", b"\x1f\x8bxx", gzip.compress(b"{}" * 100)[:20]):
        file.write_bytes(damaged)
        with pytest.raises(LakeError, match="is not valid Iceberg table metadata"):
            read_metadata(location, StorageOptions())
    file.write_bytes(orjson.dumps({**document, "format-version": 3}))
    with pytest.raises(LakeError, match="version 3"):
        read_metadata(location, StorageOptions())
