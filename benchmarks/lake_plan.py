"""lake-plan: a plan of a table with 100,000 files, beside pyiceberg's plan_files on the same table."""

from __future__ import annotations

import multiprocessing
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import StaticTable

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed
from decoders.columns import ColumnType, Kind
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.model import LakePartitioning
from mirror_pump.tables.read_plan.plan import planned_files, read_plan

FILES = 100_000
_PER_MANIFEST = 1_000
_PER_PARTITION = 100
_ROWS = 1_000
_COLUMNS = 8
_GOAL = 5.0
_STORAGE = StorageOptions(fsync=False)
_SCHEMA = LakeSchema(
    0,
    tuple(
        LakeField(number, f"c{number}", ColumnType(Kind.LONG), required=number == 1)
        for number in range(1, _COLUMNS + 1)
    ),
    (1,),
)
_WIDTH = _PER_PARTITION * _ROWS
_Result = TypeVar("_Result")


def files_at(options: Options) -> int:
    """Data files of the table."""
    return options.scaled(FILES, 2 * _PER_MANIFEST, _PER_MANIFEST)


def run(options: Options) -> BenchmarkResult:
    """Raises BenchmarkFailed if the two do not find the same files."""
    count = files_at(options)
    middle = count // 2 * _ROWS
    cases: tuple[tuple[str, str | BooleanExpression], ...] = (
        ("all", AlwaysTrue()),
        ("bounds", f"c2 > {middle}"),
        ("partition", f"c1 = {middle}"),
    )
    figures: dict[str, float | int | str | bool] = {"lake_plan.files": count}
    lines = []
    with tempfile.TemporaryDirectory() as directory:
        location = _table(Path(directory), count)
        metadata = TableMetadata.from_json(Path(location).read_bytes())
        theirs = StaticTable.from_metadata(location)
        for name, predicate in cases:
            plan, seconds = _timed(lambda predicate=predicate: read_plan(metadata, _STORAGE, predicate))  # type: ignore[misc]
            tasks, their_seconds = _timed(lambda predicate=predicate: list(theirs.scan(predicate).plan_files()))  # type: ignore[misc]
            if sorted(plan.paths) != sorted(task.file.file_path for task in tasks):
                raise BenchmarkFailed(f"the plan {name} has {len(plan.files)} files, pyiceberg's has {len(tasks)}")
            ratio = their_seconds / seconds
            figures |= {
                f"lake_plan.{name}.seconds": round(seconds, 4),
                f"lake_plan.{name}.pyiceberg_seconds": round(their_seconds, 4),
                f"lake_plan.{name}.ratio": round(ratio, 2),
                f"lake_plan.{name}.files": len(plan.files),
                f"lake_plan.{name}.manifests_opened": plan.counts.manifests_opened,
                f"lake_plan.{name}.manifests": plan.counts.manifests,
            }
            del tasks, plan
            grown, iterated = _grown_mb(location, predicate)
            figures[f"lake_plan.{name}.grown_mb"] = round(grown, 1)
            figures[f"lake_plan.{name}.iterated_mb"] = round(iterated, 1)
            opened = f"{figures[f'lake_plan.{name}.manifests_opened']} of {figures[f'lake_plan.{name}.manifests']}"
            lines.append(
                Line(
                    f"lake-plan: {name}, {count:,} files",
                    f"{seconds:.3f} s",
                    f"pyiceberg: {their_seconds:.3f} s",
                    f"{ratio:.1f}",
                    f"{_GOAL:g}",
                    f"{opened} manifests opened; {grown:.0f} MB kept, {iterated:.0f} MB iterated",
                )
            )
    return BenchmarkResult(figures, tuple(lines))


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - began)
    return result, best


def _grown_mb(location: str, predicate: str | BooleanExpression) -> tuple[float, float]:
    """By how much a process of its own grows at most: by a plan that is kept, and by one that is only iterated over."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        kept, iterated = (pool.apply(_growth, (location, predicate, keep)) for keep in (True, False))
        return kept, iterated


def _growth(location: str, predicate: str | BooleanExpression, keep: bool) -> float:
    """Peak of the resident memory less what it was before, in MB, after a plan of nothing has loaded the code."""
    metadata = TableMetadata.from_json(Path(location).read_bytes())
    read_plan(metadata, _STORAGE, "c1 = -1")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # The peak begins anew.
    before = _resident_kb("VmRSS")
    if keep:
        plan = read_plan(metadata, _STORAGE, predicate)
        assert plan.counts.entries_seen
    else:
        assert sum(1 for _ in planned_files(metadata, _STORAGE, predicate))
    return (_resident_kb("VmHWM") - before) / 1000


def _resident_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _table(directory: Path, count: int) -> str:
    """A table whose files are only in its manifests, 1,000 in each; returns the path of its metadata."""
    partitioning = LakePartitioning.by(1, f"truncate[{_WIDTH}]")
    metadata = TableMetadata.new(_SCHEMA, f"file://{directory}", {}, 1, partitioning)
    writer = ManifestWriter(metadata, 1, 1)
    manifests: list[Manifest] = []
    for first in range(0, count, _PER_MANIFEST):
        files = [(_file(directory, number), 1) for number in range(first, first + _PER_MANIFEST)]
        manifests += writer.next((), {ManifestContent.DATA: files}, _STORAGE)
    location = writer.list(manifests, None)
    write_all(writer.files, _STORAGE)
    snapshot = Snapshot.new(1, None, 1, 1, {"operation": "append"}, location, 0)
    metadata = with_snapshot(metadata, snapshot, None, (), DEFAULT_RETENTION)
    path = directory / "metadata" / "00001-plan.metadata.json"
    path.write_bytes(metadata.to_json())
    return str(path)


def _file(directory: Path, number: int) -> WrittenFile:
    columns = range(1, _COLUMNS + 1)
    low, high = struct.pack("<q", number * _ROWS), struct.pack("<q", number * _ROWS + _ROWS - 1)
    return WrittenFile(
        FileContent.DATA,
        f"file://{directory}/data/{number:032x}-0000-data.parquet",
        _ROWS,
        100_000,
        dict.fromkeys(columns, 12_500),
        dict.fromkeys(columns, _ROWS),
        dict.fromkeys(columns, 0),
        dict.fromkeys(columns, low),
        dict.fromkeys(columns, high),
        partition=(number * _ROWS // _WIDTH * _WIDTH,),
    )
