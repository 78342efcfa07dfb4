"""Table metadata: the history is thinned by a rule, logs are bounded, and unknown parts are kept."""

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
from mirror_pump.errors import FileDamaged, LakeError
from mirror_pump.lake.document.metadata_files import metadata_of, next_location, read_metadata, write_metadata
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE
from mirror_pump.lake.document.snapshot_thinning import HistoryRetention, thin_history
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.status.lake_content import lake_content

SCHEMA = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = 1_760_000_000_000


def _entry(number: int, at_ms: int) -> dict[str, Any]:
    return {
        "snapshot-id": 1000 + number,
        "sequence-number": number,
        "timestamp-ms": at_ms,
        "manifest-list": "",
        "summary": {},
    }


def _snapshot(number: int, at_ms: int) -> Snapshot:
    return Snapshot(_entry(number, at_ms))


def _changed(metadata: TableMetadata, **changes: Any) -> TableMetadata:
    """The document as another engine may leave it."""
    return TableMetadata({**metadata.document, **changes})


def _grown(times: list[int], retention: HistoryRetention, keep: frozenset[int] = frozenset()) -> TableMetadata:
    metadata = TableMetadata.new(SCHEMA, "file:///t", {}, times[0])
    for number, at_ms in enumerate(times, 1):
        metadata = with_snapshot(metadata, _snapshot(number, at_ms), f"file:///t/{number}", keep, retention)
    return metadata


def test_history_of_a_commit_a_second_is_bounded_and_even() -> None:
    times = list(range(NOW - 3 * HOUR, NOW, 1000))
    metadata = _grown(times, HistoryRetention())
    kept = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
    assert kept[-100:] == times[-100:]
    older = kept[:-100]
    minutes = [at for at in older if NOW - at < HOUR - MINUTE]
    assert 55 <= len(minutes) <= 61
    assert {(b - a) // 1000 for a, b in itertools.pairwise(minutes)} == {60}
    assert len(older) - len(minutes) <= 5, "hours beyond"


def test_beyond_the_last_hour_kept_nothing_stays() -> None:
    times = list(range(NOW - 9 * DAY, NOW, HOUR // 2))
    kept = [snapshot.timestamp_ms for snapshot in _grown(times, HistoryRetention(newest=3)).snapshots]
    assert min(kept) > NOW - 7 * DAY - HOUR
    assert len(kept) == pytest.approx(7 * 24 + 3, abs=3)


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=60), st.integers(1, 10), st.sets(st.integers(1, 60)))
def test_thinning_keeps_the_newest_the_held_and_settles(gaps: list[int], newest: int, held: set[int]) -> None:
    times = [NOW + sum(gaps[: n + 1]) for n in range(len(gaps))]
    snapshots = [_entry(number, at_ms) for number, at_ms in enumerate(times, 1)]
    ids = {1000 + number for number in held}
    retention = HistoryRetention(newest=newest)
    kept = thin_history(snapshots, ids, times[-1], retention)
    assert kept[-newest:] == snapshots[-newest:]
    assert [snapshot for snapshot in snapshots if snapshot["snapshot-id"] in ids and snapshot not in kept] == []
    assert thin_history(kept, ids, times[-1], retention) == kept
    assert kept == sorted(kept, key=lambda entry: entry["sequence-number"])


def test_pinned_and_referenced_snapshots_stay() -> None:
    metadata = TableMetadata.new(SCHEMA, "file:///t", {}, NOW)
    retention = HistoryRetention(newest=2, minutes_for_ms=0, hours_for_ms=0)
    for number in range(1, 10):
        metadata = with_snapshot(metadata, _snapshot(number, NOW + number), f"l{number}", frozenset({1003}), retention)
        if number == 5:
            audit = {"type": "tag", "snapshot-id": 1005, "max-ref-age-ms": 7}
            metadata = _changed(metadata, refs={**metadata.document["refs"], "audit": audit})
    assert [snapshot.sequence_number for snapshot in metadata.snapshots] == [3, 5, 8, 9]
    assert metadata.document["refs"] == {
        "audit": {"type": "tag", "snapshot-id": 1005, "max-ref-age-ms": 7},
        "main": {"type": "branch", "snapshot-id": 1009},
    }


def test_archive_snapshots_stay_from_the_oldest_pinned_one_on_and_the_newest_ten() -> None:
    snapshots = [{**_entry(number, NOW), "summary": {ARCHIVE_CUT_LINE: "0"}} for number in range(1, 31)]
    retention = HistoryRetention(newest=1, minutes_for_ms=0, hours_for_ms=0)

    def kept(held: set[int]) -> list[int]:
        return [snapshot["sequence-number"] for snapshot in thin_history(snapshots, held, NOW, retention)]

    assert kept({1030}) == list(range(21, 31))
    assert kept({1030, 1012, 1018}) == list(range(12, 31))
    assert kept({1030, 1025}) == list(range(21, 31))


def test_the_snapshot_log_has_no_gap_and_the_metadata_log_a_bound() -> None:
    metadata = _grown([NOW + n * 1000 for n in range(300)], HistoryRetention())
    document = metadata.document
    assert [entry["snapshot-id"] for entry in document["snapshot-log"]] == [1000 + n for n in range(201, 301)]
    assert len(document["metadata-log"]) == metadata.metadata_log_length == 100
    assert document["metadata-log"][-1]["metadata-file"] == "file:///t/300"
    bounded = _changed(metadata, properties={"write.metadata.previous-versions-max": "5"})
    assert with_snapshot(bounded, _snapshot(301, NOW), "x", frozenset(), HistoryRetention()).metadata_log_length == 5


def test_the_old_document_is_not_changed_and_unknown_fields_are_carried() -> None:
    new = TableMetadata.new(SCHEMA, "file:///t", {"a": "b"}, NOW)
    metadata = TableMetadata({**new.document, "encryption-keys": [{"key-id": "1"}]})
    before = metadata.to_json()
    after = with_snapshot(metadata, _snapshot(1, NOW), "x", frozenset(), HistoryRetention())
    assert metadata.to_json() == before
    assert after.document["encryption-keys"] == [{"key-id": "1"}]
    assert after.properties == {"a": "b"}
    assert after.table_uuid == metadata.table_uuid


def test_statistics_leave_with_their_snapshot() -> None:
    retention = HistoryRetention(newest=1, minutes_for_ms=0, hours_for_ms=0)
    new = TableMetadata.new(SCHEMA, "f", {}, NOW)
    metadata = with_snapshot(new, _snapshot(1, NOW), "x", frozenset(), retention)
    metadata = _changed(metadata, statistics=[{"snapshot-id": 1001}])
    held = with_snapshot(metadata, _snapshot(2, NOW), "x", frozenset({1001}), retention)
    assert held.document["statistics"] == [{"snapshot-id": 1001}]
    assert with_snapshot(metadata, _snapshot(2, NOW), "x", frozenset(), retention).document["statistics"] == []


def test_snapshots_are_found_by_id() -> None:
    metadata = _grown([NOW, NOW + 1], HistoryRetention())
    assert metadata.current_snapshot == metadata.snapshot(1002) == Snapshot(_entry(2, NOW + 1))
    assert metadata.snapshot(5) is None
    assert TableMetadata.new(SCHEMA, "f", {}, NOW).current_snapshot is None
    assert 0 < metadata.new_snapshot_id() < 2**63


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
    metadata = TableMetadata.new(SCHEMA, "file:///t", {}, NOW)
    location = next_location(metadata, old)
    assert location.startswith(f"file:///t/metadata/{prefix}")
    assert location.endswith(".metadata.json")
    elsewhere = _changed(metadata, properties={"write.metadata.path": "file:///elsewhere"})
    assert next_location(elsewhere, old).startswith("file:///elsewhere/")


def test_a_document_goes_where_its_table_says_since_a_moment_ago(tmp_path: Path) -> None:
    storage = StorageOptions(fsync=False)
    metadata = TableMetadata.new(SCHEMA, f"{tmp_path.as_uri()}/t", {}, NOW)
    (tmp_path / "t" / "metadata").mkdir(parents=True)
    first = write_metadata(metadata, None, storage)
    elsewhere = f"{tmp_path.as_uri()}/t/elsewhere"
    moved = _changed(metadata, properties={"write.metadata.path": elsewhere})
    second = write_metadata(moved, first, storage, [(f"{tmp_path.as_uri()}/t/metadata/list", b"1")])
    assert second.startswith(f"{elsewhere}/00001-")
    assert [read_metadata(location, storage) for location in (first, second)] == [metadata, moved]
    assert (tmp_path / "t" / "metadata" / "list").read_bytes() == b"1"


def test_metadata_is_read_compressed_or_not_and_damage_is_reported(tmp_path: Path) -> None:
    metadata = TableMetadata.new(SCHEMA, tmp_path.as_uri(), {}, NOW)
    file = tmp_path / "m"
    location = file.as_uri()
    for content in (metadata.to_json(), gzip.compress(metadata.to_json())):
        file.write_bytes(content)
        assert read_metadata(location, StorageOptions()) == metadata
    for damaged in (b"{", b"[]", b"{}", b"\x1f\x8bxx", gzip.compress(b"{}" * 100)[:20]):
        file.write_bytes(damaged)
        with pytest.raises(LakeError, match="is not valid Iceberg table metadata"):
            read_metadata(location, StorageOptions())
    file.write_bytes(orjson.dumps({**metadata.document, "format-version": 4}))
    with pytest.raises(LakeError, match="version 4"):
        read_metadata(location, StorageOptions())


_SNAPSHOT = {"snapshot-id": 1, "timestamp-ms": 1, "sequence-number": 1, "manifest-list": "file:///l", "summary": {}}


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("location", None, "location is missing"),
        ("table-uuid", 1, "table-uuid is '1'"),
        ("last-sequence-number", "1", "last-sequence-number is '1'"),
        ("last-updated-ms", True, "last-updated-ms is 'True'"),
        ("schemas", {}, "schemas is no list"),
        ("schemas", [{"schema-id": 0, "fields": [{"id": "1"}]}], r"schemas\[0\].fields\[0\].id is '1'"),
        ("partition-specs", [[]], r"partition-specs\[0\]. is no object"),
        ("properties", {"a": 1}, "properties is"),
        ("refs", {"main": {"snapshot-id": None}}, "refs.main.snapshot-id is missing"),
        ("snapshots", [{**_SNAPSHOT, "manifest-list": 7}], r"snapshots\[0\].manifest-list is '7'"),
        ("snapshots", [{**_SNAPSHOT, "summary": []}], r"snapshots\[0\].summary is"),
        ("current-snapshot-id", 7, "its current snapshot 7 is not among its snapshots"),
        ("metadata-log", [{"metadata-file": None, "timestamp-ms": 1}], "metadata-file is missing"),
        ("location", "file:///t", "it is that of another table, at file:///t"),
    ],
)
def test_metadata_that_lacks_what_is_read_is_damaged(tmp_path: Path, key: str, value: object, error: str) -> None:
    file = tmp_path / "m"
    document = TableMetadata.new(SCHEMA, tmp_path.as_uri(), {}, NOW).document
    file.write_bytes(orjson.dumps({**document, key: value}))
    with pytest.raises(FileDamaged, match=error):
        read_metadata(file.as_uri(), StorageOptions())
    with pytest.raises(FileDamaged, match=error):
        lake_content(file.read_bytes(), file.as_uri())


def test_places_are_the_same_however_an_engine_spells_them(tmp_path: Path) -> None:
    file = tmp_path / "m"
    document = TableMetadata.new(SCHEMA, tmp_path.as_uri(), {}, NOW)
    file.write_bytes(document.to_json())
    assert read_metadata(f"file:{file}", StorageOptions()) == document
    document = TableMetadata.new(SCHEMA, "s3://lake/t/", {}, NOW)
    assert metadata_of(document.to_json(), "s3a://lake/t/metadata/m") == document
    elsewhere = TableMetadata.new(SCHEMA, "file:///t", {"write.metadata.path": tmp_path.as_uri()}, NOW)
    assert metadata_of(elsewhere.to_json(), file.as_uri()) == elsewhere


def test_totals_that_are_no_numbers_are_damage(tmp_path: Path) -> None:
    location = (tmp_path / "m").as_uri()
    snapshot = {**_SNAPSHOT, "summary": {"operation": "append", "total-records": "many"}}
    document = {**TableMetadata.new(SCHEMA, tmp_path.as_uri(), {}, NOW).document, "snapshots": [snapshot]}
    with pytest.raises(FileDamaged, match="many"):
        lake_content(orjson.dumps({**document, "current-snapshot-id": 1}), location)
