"""Counts of changes by transaction and table, as the table of transactions has them."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from random import Random

import pyarrow as pa
import pytest

from mirror_pump.lake.format.feed_schema import TRANSACTION_SCHEMA
from mirror_pump.pipeline.feeds.feed_staging import transaction_rows
from mirror_pump.pipeline.operations.append_changes import COUNT_SCHEMA

_AT = datetime.datetime(2026, 5, 4, tzinfo=datetime.UTC)


def test_without_any() -> None:
    assert transaction_rows([]).num_rows == 0
    assert transaction_rows([("public.t", COUNT_SCHEMA.empty_table())]).schema == TRANSACTION_SCHEMA.arrow


@pytest.mark.parametrize("seed", range(20))
def test_each_transaction_once_with_all_its_tables(seed: int) -> None:
    random = Random(seed)
    expected: dict[int, Counter[str]] = defaultdict(Counter)
    counts = []
    for _ in range(random.randint(1, 8)):
        name = random.choice(["public.b", "public.a", "other.c"])
        lsns = sorted(random.sample(range(100, 130), random.randint(0, 12)))
        rows = []
        for lsn in lsns:
            count = random.randint(1, 9)
            expected[lsn][name] += count
            origin = "elsewhere" if lsn % 3 else None
            rows.append({"_lsn": lsn, "_xid": lsn + 7, "_committed_at": _AT, "_origin": origin, "count": count})
        counts.append((name, pa.Table.from_pylist(rows, schema=COUNT_SCHEMA)))
    table = transaction_rows(counts)
    assert table.schema == TRANSACTION_SCHEMA.arrow
    assert table.column("_lsn").to_pylist() == sorted(expected)
    for row in table.to_pylist():
        assert dict(row["tables"]) == expected[row["_lsn"]]
        assert (row["_xid"], row["_origin"]) == (row["_lsn"] + 7, "elsewhere" if row["_lsn"] % 3 else None)
