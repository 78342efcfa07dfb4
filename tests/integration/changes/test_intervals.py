"""Whoever attaches the changes of an interval gets these, all and no others, wherever its ends cut through files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from mirror_pump.model import format_lsn
from mirror_pump.spark import read_changes
from mirror_pump.testing.mirror import Mirror
from tests.support.made_feeds import MadeFeed, Row
from tests.support.rest_catalog import ServedMirror, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTERVALS = 12
_COLUMNS = (
    "_lsn",
    "_seq",
    "_op",
    "_xid",
    "_committed_at",
    "_origin",
    "_old",
    "id",
    "name",
    "amount",
    "u",
    "at",
    "tags",
    "share",
)


def by_duckdb(catalog: ServedMirror, warehouse: str) -> list[Row]:
    with catalog.duckdb(warehouse) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows: list[Row] = connection.execute("SELECT * FROM lake.public.orders").to_arrow_table().to_pylist()
        return rows


def by_pyiceberg(catalog: ServedMirror, warehouse: str) -> list[Row]:
    rows: list[Row] = catalog.pyiceberg(warehouse).load_table(("public", "orders")).scan().to_arrow().to_pylist()
    return rows


def _plain(value: Any) -> Any:
    """A value as text that is equal for equal values, also NaN, whichever engine's type it has."""
    if isinstance(value, dict):
        return tuple((name, _plain(part)) for name, part in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return str(UUID(bytes=value)) if isinstance(value, bytes) else str(value)


def _rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    ordered = sorted(rows, key=lambda row: (row["_lsn"], row["_seq"]))
    return [tuple(_plain(row[name]) for name in _COLUMNS) for row in ordered]


@pytest.mark.parametrize("read", [by_duckdb, pytest.param(by_pyiceberg, marks=pytest.mark.further)])
def test_an_interval_has_exactly_its_rows(
    mirror: Mirror, feed: MadeFeed, read: Callable[[ServedMirror, str], list[Row]]
) -> None:
    with served(mirror.settings) as catalog:
        for number in range(_INTERVALS):
            since, until = sorted((feed.position(), feed.position()))
            if number == 0:
                since, until = 0, mirror.frontier()
            if number % 3 == 2:
                feed.merge()
            end = "latest" if number == 0 else format_lsn(until).replace("/", "-")
            rows = read(catalog, f"mirror@{format_lsn(since)}..{end}")
            assert _rows(rows) == _rows(feed.between(since, until)), (since, until)


@pytest.mark.further
def test_spark_reads_exactly_an_interval(mirror: Mirror, feed: MadeFeed, spark: SparkSession) -> None:
    for _ in range(3):
        since, until = sorted((feed.position(), feed.position()))
        with read_changes(spark, "orders", since, until, settings=mirror.settings) as frame:
            rows = [row.asDict(recursive=True) for row in frame.select(*_COLUMNS).collect()]
            shown = feed.between(since, until)
            assert sorted((row["_lsn"], row["_seq"]) for row in rows) == [(row["_lsn"], row["_seq"]) for row in shown]
            assert frame.where("id < 50").count() == sum(row["id"] < 50 for row in shown)
            assert frame.where("share = 0.5").count() == sum(row["share"] == 0.5 for row in shown)
            assert frame.where("_old.name = 'a'").count() == sum(
                (row["_old"] or {}).get("name") == "a" for row in shown
            )
            assert frame.until == format_lsn(until)
        feed.merge()
    assert mirror.database.rows("SELECT count(*) FROM modak.feed_pins") == [(0,)]
