"""lake: appends per second to one table without a server, by 1, 4 and 16 writers, beside pyiceberg's SqlCatalog.

Both have a SQLite file of the same kind, and commit links to a data file that is there already. Each writer is a
process. A commit that has used up its attempts is counted, and begun anew: these are what a livelock would consist of.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed
from mirror_pump.tables.catalogs.lake_catalog import TableMoved
from mirror_pump.tables.table.row_files import write_rows
from mirror_pump.tables.table.table import Table
from tests.support.counting_catalog import CountingCatalog

WRITERS = (1, 4, 16)
SECONDS = 8
_TABLE = "bench.orders"
_ROWS = 1000
_GOAL = 5.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["benchmarks.bench_lake", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"])


@dataclass(frozen=True)
class WriterCount:
    """What one writer did."""

    commits: int
    conflicts: int
    """Attempts that found the pointer moved."""
    most_attempts: int
    """Of one commit."""
    exhausted: int
    """Commits that had used up their attempts."""


def run(directory: Path, options: Options) -> BenchmarkResult:
    """`directory`: where to make the tables."""
    seconds = max(1.0, SECONDS * options.scale)
    figures: dict[str, float | int | str | bool] = {"lake.seconds": seconds}
    lines = []
    for writers in WRITERS:
        ours = _measured(_ours, _create_ours, directory / "ours", writers, seconds)
        theirs = _measured(_pyiceberg, _create_pyiceberg, directory / "pyiceberg", writers, seconds)
        rate, limit = (sum(count.commits for count in counts) / seconds for counts in (ours, theirs))
        conflicts = sum(count.conflicts for count in ours) / max(1, sum(count.commits for count in ours))
        most, exhausted = max(count.most_attempts for count in ours), sum(count.exhausted for count in ours)
        figures |= {
            f"lake.appends_{writers}_per_s": round(rate, 1),
            f"lake.pyiceberg_{writers}_per_s": round(limit, 1),
            f"lake.appends_{writers}_ratio": round(rate / max(limit, 0.01), 2),
            f"lake.conflicts_{writers}": round(conflicts, 2),
            f"lake.most_attempts_{writers}": most,
            f"lake.exhausted_{writers}": exhausted,
        }
        lines.append(
            Line(
                f"lake: appends by {writers} writer{'s' * (writers > 1)}",
                f"{rate:,.0f}/s",
                f"{limit:,.0f}/s",
                f"{rate / max(limit, 0.01):.1f}",
                f"≥ {_GOAL:.0f}",
                f"beside pyiceberg; {conflicts:.2f} conflicts a commit, at most {most} attempts, {exhausted} gave up",
            )
        )
    return BenchmarkResult(figures, tuple(lines))


def _measured(
    work: Callable[..., None],
    create: Callable[[Path], str],
    directory: Path,
    writers: int,
    seconds: float,
) -> list[WriterCount]:
    """Runs the writers for so long. Fails if a commit is missing in the table, or there twice."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    file = create(directory)
    barrier, answers = _FORKS.Barrier(writers), _FORKS.SimpleQueue()
    processes = [
        _FORKS.Process(target=work, args=(directory, file, seconds, barrier, answers), daemon=True)
        for _ in range(writers)
    ]
    for process in processes:
        process.start()
    counts = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    commits = sum(count.commits for count in counts)
    table = Table.open(_catalog(directory), _TABLE)
    found = sum(manifest.live_files for manifest in table.manifests)
    if found != commits:
        raise BenchmarkFailed(f"{found} files are in the table after {commits} appends")
    return counts


def _catalog(directory: Path) -> CountingCatalog:
    return CountingCatalog(directory / "catalog.db", (directory / "lake").as_uri())


def _create_ours(directory: Path) -> str:
    catalog = _catalog(directory)
    table = Table.create(catalog, _TABLE, _rows().schema)
    (file,) = write_rows(_rows(), table.metadata, catalog.storage)
    return file


def _ours(directory: Path, file: str, seconds: float, barrier: Barrier, answers: Any) -> None:
    catalog = _catalog(directory)
    table = Table.open(catalog, _TABLE)
    commits = most = exhausted = 0
    barrier.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = catalog.conflicts
        try:
            table.commit_append([_another(file)])
            commits += 1
        except TableMoved:
            exhausted += 1
        most = max(most, catalog.conflicts - before + 1)
    answers.put(WriterCount(commits, catalog.conflicts, most, exhausted))


def _sql_catalog(directory: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog("lake", uri=f"sqlite:///{directory / 'catalog.db'}", warehouse=(directory / "lake").as_uri())


def _create_pyiceberg(directory: Path) -> str:
    # The file has the table's field IDs, which add_files refuses: it is written without them.
    import pyarrow.parquet as pq

    catalog = _sql_catalog(directory)
    catalog.create_namespace("bench")
    table = catalog.create_table(_TABLE, _rows().schema)
    (directory / "lake").mkdir(exist_ok=True)
    path = directory / "lake" / "rows.parquet"
    pq.write_table(_rows(), path, compression="zstd")
    assert table is not None
    return path.as_uri()


def _pyiceberg(directory: Path, file: str, seconds: float, barrier: Barrier, answers: Any) -> None:
    from pyiceberg.exceptions import CommitFailedException
    from sqlalchemy.exc import OperationalError

    # It says so at each conflict.
    logging.disable(logging.WARNING)
    table = _sql_catalog(directory).load_table(_TABLE)
    commits = conflicts = 0
    barrier.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            table.add_files([_another(file)], check_duplicate_files=False)
            commits += 1
        except (CommitFailedException, OperationalError):
            conflicts += 1
            table.refresh()
    answers.put(WriterCount(commits, conflicts, 0, 0))


def _another(file: str) -> str:
    """URI of the same file by a new name: a table refuses a file that it has."""
    location = f"{file.removesuffix('.parquet')}-{uuid.uuid4().hex}.parquet"
    os.link(file.removeprefix("file://"), location.removeprefix("file://"))
    return location


def _rows() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(_ROWS), pa.int64()),
            "name": [f"customer {number}" for number in range(_ROWS)],
            "amount": pa.array([number * 1.5 for number in range(_ROWS)], pa.float64()),
        }
    )
