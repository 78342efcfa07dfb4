"""Keys on disk, in parts by hash: what many threads add at once is there, once, in its part, also when a part is stored
in another order."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.ops.ingest.write.key_parts import PARTS, KeyParts, part_of


@pytest.mark.parametrize("words", [1, 2])
def test_parts_have_the_rows_that_threads_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: int) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chance = np.random.default_rng(words)
    first, second = chance.integers(-(2**63), 2**63 - 1, (2, 5000))
    keys = PackedKeys(first, second if words == 2 else None)
    parts = KeyParts(words)
    limits = np.sort(np.append(chance.integers(0, 5000, 40), [0, 0, 5000]))
    with ThreadPoolExecutor(4) as pool:
        for begin, end in pairwise(limits):
            pool.submit(parts.add, keys.take(slice(begin, end)), np.arange(begin, end))
    found = [parts.load(part) for part in range(PARTS)]
    for part, rows in enumerate(found):
        assert (part_of(parts.keys(rows)) == part).all()
        parts.replace(part, rows[::-1].copy())
    for part, rows in enumerate(found):
        assert (parts.load(part) == rows[::-1]).all()
    rows = np.concatenate(found)
    rows = rows[np.argsort(rows[:, -1])]
    assert (rows[:, -1] == np.arange(5000)).all()
    assert (rows[:, 0] == first).all()
    assert words == 1 or (rows[:, 1] == second).all()
    assert not list(tmp_path.iterdir()), "nothing is left of a process that is killed"
    parts.close()
