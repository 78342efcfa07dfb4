"""A key index in memory and in files, without Postgres and Spark: `python -m benchmarks.index_micro [--keys 20000000]`.

It is built from files of 500,000 bigint keys, which ascend as those of a sequence do, or come in random order with
`--random`. Then batches of 10,000 random keys get other places, as updates do. Each kind in a process of its own, whose
RSS is that of an empty process less; the page cache, which has what files are read of, does not count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mirror_pump.lake.key_index.key_index import KeyIndex
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.lake.key_index.packed_keys import PackedKeys

_FILE_ROWS = 500_000
_BATCH = 10_000
_BATCHES = 50
_LIMIT = 64 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--one", choices=["memory", "files"])
    arguments = parser.parse_args()
    if arguments.one is not None:
        _measure(arguments.keys, files=arguments.one == "files", shuffled=arguments.random)
        return
    for kind in ("memory", "files"):
        subprocess.run([sys.executable, "-m", "benchmarks.index_micro", *sys.argv[1:], "--one", kind], check=True)


def _measure(keys: int, *, files: bool, shuffled: bool) -> None:
    random = np.random.default_rng(1)
    order = random.permutation(keys) if shuffled else np.arange(keys)
    base = _rss()
    store = LeafStore(_LIMIT) if files else None
    index = KeyIndex(1, store=store)
    began = time.monotonic()
    peak = 0
    for first in range(0, keys, _FILE_ROWS):
        part = order[first : first + _FILE_ROWS]
        index.put(PackedKeys(part, None), part)
        peak = max(peak, _rss())
    built = time.monotonic() - began
    began = time.monotonic()
    for _ in range(_BATCHES):
        batch = PackedKeys(np.unique(random.integers(0, keys, _BATCH)), None)
        places = index.find(batch)
        assert (places == batch.first).all()
        index.put(batch, places)
        peak = max(peak, _rss())
    looked_up = (time.monotonic() - began) / _BATCHES
    memory, written = (peak - base) >> 20, index.disk_bytes >> 20
    print(
        f"{'files' if files else 'memory'}: {keys:,} keys built in {built:.1f} s; {_BATCH:,} random keys found and"
        f" changed in {looked_up * 1000:.1f} ms; {memory:,} MiB of RSS at most, {written:,} MiB in files"
    )


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
