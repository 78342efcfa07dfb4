"""Values whose arrays are in a file are those that were given, and the file ends with them."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mirror_pump.engine.ingest.segment_tasks import TableResult
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.unwritten_files import UnwrittenFiles
from mirror_pump.model import TableId
from mirror_pump.runtime.spill import Spill, release_spilled


def value(seed: int, rows: int) -> tuple[pa.Table, np.ndarray]:
    texts = pa.array([None if row % 7 == 0 else f"{seed}-{row}" * (row % 50) for row in range(rows)], pa.string())
    return pa.table({"t": texts, "flags": pa.array([row % 3 == 0 for row in range(rows)])}), np.arange(rows) * seed


@pytest.fixture
def spilled_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this test's files, by which they are told from those of others in this process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def resident(directory: Path) -> int:
    """Bytes in memory of files in the directory."""
    counted, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Rss":
            total += int(value.split()[0]) * 1024 * counted
        elif "-" in name.partition(" ")[0]:
            counted = str(directory) in line
    return total


def open_files(directory: Path) -> int:
    """Open files of the directory, and their mappings."""
    handles = [str(handle.readlink()) for handle in _handles()]
    return sum(str(directory) in name for name in [*handles, *Path("/proc/self/maps").read_text().splitlines()])


def _handles() -> Iterator[Path]:
    for handle in list(Path("/proc/self/fd").iterdir()):
        # That of the directory itself is gone.
        if handle.is_symlink():
            yield handle


def test_values_come_back_as_they_were(spilled_to: Path) -> None:
    stored = Spill(kept_bytes=0)
    values = [value(seed, rows) for seed, rows in enumerate([0, 1, 5, 1000, 30_000, 7, 20_000, 60_000])]
    spilled = [stored.stored(each, 1) for each in values]
    release_spilled()
    assert [(table.to_pydict(), numbers.tolist()) for table, numbers in spilled] == [
        (table.to_pydict(), numbers.tolist()) for table, numbers in values
    ]
    for table, _ in spilled:
        table.validate(full=True)
    assert not list(spilled_to.iterdir())


def test_the_first_values_stay_as_they_are() -> None:
    stored = Spill(kept_bytes=100)
    values = [value(seed, 100) for seed in range(3)]
    spilled = [stored.stored(each, 40) for each in values]
    assert [one is other for one, other in zip(values, spilled, strict=True)] == [True, True, False]


def test_the_file_ends_with_the_last_value(spilled_to: Path) -> None:
    stored = Spill(kept_bytes=0)
    first, second = stored.stored(value(1, 20_000), 1), stored.stored(value(2, 20_000), 1)
    del stored, first
    gc.collect()
    assert second[1].sum() == value(2, 20_000)[1].sum()
    assert open_files(spilled_to) > 0
    del second
    gc.collect()
    assert open_files(spilled_to) == 0


def test_what_was_looked_at_leaves_memory(spilled_to: Path) -> None:
    stored = Spill(kept_bytes=0)
    values = [stored.stored(np.arange(1 << 20) + number, 1) for number in range(40)]
    release_spilled()
    before = resident(spilled_to)
    assert sum(int(numbers.sum()) for numbers in values) == 40 * sum(range(1 << 20)) + (1 << 20) * sum(range(40))
    assert resident(spilled_to) - before > 200 << 20
    release_spilled()
    assert resident(spilled_to) - before < 20 << 20
    assert values[3][5] == 8


def test_without_room_values_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "planted")

    stored = Spill(kept_bytes=0)
    kept = value(1, 100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert stored.stored(kept, 1) is kept
    again = stored.stored(kept, 1)
    assert again is not kept
    assert again[0].equals(kept[0])


def test_files_that_tasks_hand_over_do_not_stay_in_memory(spilled_to: Path) -> None:
    content = os.urandom(1 << 20)
    contents = {"file:///lake/t/data/a.parquet": pa.py_buffer(content)}
    result = TableResult(TableId(1), 1, SegmentFiles((), ()), None, None, unwritten=UnwrittenFiles(contents))
    assert result.nbytes == len(content)
    stored = Spill(kept_bytes=0).stored(result, result.nbytes)
    assert [bytes(memoryview(part)) for part in stored.unwritten.contents.values()] == [content]
    assert resident(spilled_to) >= len(content)
    release_spilled()
    assert resident(spilled_to) < len(content)
