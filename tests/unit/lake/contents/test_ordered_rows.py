"""Rows of a feed come in the order of their commits, however files share transactions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from mirror_pump.lake.contents.ordered_rows import in_commit_order, sorted_batches

_ROUNDS = 300


def _batches(places: list[tuple[int, int]], size: int) -> Iterator[pa.Table]:
    for begin in range(0, len(places), size):
        part = places[begin : begin + size]
        yield pa.table({"_lsn": [lsn for lsn, _ in part], "_seq": [seq for _, seq in part]})


def test_rows_of_files_that_share_transactions() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    for _ in range(_ROUNDS):
        places = sorted({(chance.randrange(12), chance.randrange(20)) for _ in range(chance.randrange(60))})
        cuts = sorted(chance.choices(range(len(places) + 1), k=chance.randrange(5)))
        files = [places[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(places)], strict=True)]
        # Some rows are in a file of their own, beside those that were written before.
        apart = sorted(chance.sample(places, len(places) // 5))
        files = [[place for place in file if place not in apart] for file in files]
        files.append(apart)
        chance.shuffle(files)
        openers = [
            ((file[0][0] if file else 0) - chance.choice([0, 0, 3]), partial(_batches, file, chance.randint(1, 9)))
            for file in files
        ]
        rows = [row for table in in_commit_order(openers) for row in zip(*table.to_pydict().values(), strict=True)]
        assert rows == places


def _rows(places: list[tuple[int, int]], size: int) -> Iterator[pa.Table]:
    """Rows with a value that belongs to the place."""
    for rows in _batches(places, size):
        values = [f"{lsn}-{seq}" for lsn, seq in zip(*rows.to_pydict().values(), strict=True)]
        yield rows.append_column("value", pa.array(values))


def test_a_file_in_any_order_is_read_in_order() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"{seed=}")
    chance = random.Random(seed)
    for _ in range(_ROUNDS):
        places = sorted({(chance.randrange(12), chance.randrange(20)) for _ in range(chance.randrange(60))})
        # As they are, in pieces of which the later come first, or in no order at all.
        order = chance.choice(["sorted", "pieces", "none"])
        stored = list(places)
        if order == "pieces":
            cut = chance.randrange(len(places) + 1)
            stored = places[cut:] + places[:cut]
        elif order == "none":
            chance.shuffle(stored)
        size, run_bytes = chance.randint(1, 70), chance.choice([1, 200, 1 << 20])
        batches = sorted_batches(partial(_rows, stored, size), partial(_batches, stored, 7), run_bytes)
        rows = [row for table in batches for row in table.to_pylist()]
        assert rows == [{"_lsn": lsn, "_seq": seq, "value": f"{lsn}-{seq}"} for lsn, seq in places]
