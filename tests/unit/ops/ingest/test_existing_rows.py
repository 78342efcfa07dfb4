"""Rows of the lake that have the keys of ingested rows: all of them are found, by work that grows with the rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mirror_pump.lake.commit.row_delta import RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.ops.ingest.commit.existing_rows import ExistingRows
from mirror_pump.ops.ingest.write.ingested_keys import IngestedKeys
from tests.support.lake_tables import SCHEMA, STORAGE, SmallTable

_PACKING = KeyPacking.of(SCHEMA, b"secret")


def _ingested(keys: Sequence[int]) -> IngestedKeys:
    found = IngestedKeys(1)
    found.add(PackedKeys(np.array(keys, np.int64), None), np.arange(len(keys)))
    assert found.finish() == []
    return found


def _existing(keys: IngestedKeys, files: Sequence[WrittenFile], read_rows: int) -> ExistingRows:
    assert _PACKING is not None
    return ExistingRows(SCHEMA, _PACKING, STORAGE, SCHEMA.fields[0], keys, files, 2, read_rows)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_replaced_is_what_readers_see(tmp_path: Path, seed: int) -> None:
    """Random commits of rows, deletes by key and by position, and looks between them: each key that is ingested and
    present is found, once, and where its row is deleted by position, the row is of that key."""
    chance = random.Random(seed)
    table = SmallTable((tmp_path / "t").as_uri())
    wanted = chance.sample(range(60), 25)
    files = [table.data(dict.fromkeys(sorted(part))) for part in (wanted[:12], wanted[12:])]
    keys = _ingested(wanted)
    existing = _existing(keys, files, read_rows=chance.choice([1, 10, 1000]))
    rows: dict[str, list[int]] = {}
    looked = False
    live: dict[int, tuple[str, int]] = {}
    for _ in range(chance.randint(1, 12)):
        added = sorted(chance.sample(range(60), chance.randint(1, 20)))
        deleted = sorted(set(added) & live.keys() | set(chance.sample(range(60), 3)))
        data = table.data(dict.fromkeys(added))
        deletes: tuple[WrittenFile, ...] = ()
        positions: dict[str, list[int]] = {}
        if chance.random() < 0.5:
            deletes = table.delete_files(deleted)
        else:
            for key in deleted:
                if key in live:
                    positions.setdefault(live[key][0], []).append(live[key][1])
        hidden = {path: np.array(sorted(numbers)) for path, numbers in positions.items()}
        table.commit(RowDelta((SegmentFiles((data,), deletes),), hidden=hidden))
        for key in deleted:
            live.pop(key, None)
        rows[data.path] = added
        live |= {key: (data.path, number) for number, key in enumerate(added)}
        if chance.random() < 0.5:
            assert existing.unknown(table.table) or not set(added) & set(wanted)
            existing.look(table.table)
            looked = True
    existing.look(table.table)
    assert not existing.unknown(table.table)
    replaced = existing.replaced(table.table)
    places = {wanted.index(key) for key in live.keys() & set(wanted)}
    found = replaced.places.tolist()
    assert found == sorted(set(found))
    # A row that a later commit deletes by position is deleted once more, which does no harm.
    assert places <= set(found) if looked else places == set(found)
    for key in live.keys() & set(wanted):
        path, number = live[key]
        assert number in replaced.positions[path].tolist()
    for path, numbers in replaced.positions.items():
        assert {rows[path][number] for number in numbers.tolist()} <= set(wanted)
        assert numbers.tolist() == sorted(set(numbers.tolist()))
    keys.close()


def _bytes_read() -> int:
    """Bytes that this process has read from files and caches so far, by the kernel's count."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("the kernel counts no reads")


def _work(directory: Path, files: int) -> int:
    """The bytes that are read to look for all rows of a lake of so many files, each of 500 rows that all are ingested,
    and each with its own group of keys."""
    table = SmallTable((directory / "t").as_uri())
    each = 500
    written = [table.data(dict.fromkeys(range(number * each, (number + 1) * each))) for number in range(files)]
    table.commit(RowDelta((SegmentFiles(tuple(written), ()),)))
    for _ in range(2):
        table.commit(RowDelta((), hidden={file.path: np.arange(10) for file in written}))
    keys = _ingested(range(files * each))
    existing = _existing(keys, written, read_rows=each)
    before = _bytes_read()
    existing.look(table.table)
    read = _bytes_read() - before
    assert len(existing.replaced(table.table).places) == files * (each - 10)
    keys.close()
    return read


def test_work_grows_with_the_rows_and_not_with_their_product(tmp_path: Path) -> None:
    """Four times as many rows on both sides: four times the bytes, and not sixteen times."""
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    few, many = _work(tmp_path / "few", 15), _work(tmp_path / "many", 60)
    assert many < 6 * few, (few, many)
