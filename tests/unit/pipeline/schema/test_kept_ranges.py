"""Ranges of the tier key whose partitions went, while the lake keeps their rows: known from the note on."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from mirror_pump.lake.contents.kept_ranges import EVERY_VALUE, KeptRanges, united
from mirror_pump.model import Tier, TierKind
from mirror_pump.pipeline.schema.decisions import Action
from tests.unit.pipeline.schema.shapes import SHAPE, TABLE, decided, leaf


def _datum(number: int) -> str:
    content = " ".join(str(byte) for byte in struct.pack("<q", number))
    const = f"{{CONST :consttype 23 :constlen 4 :constisnull false :location -1 :constvalue 4 [ {content} ]}}"
    return f"{{PARTITIONRANGEDATUM :kind 0 :value {const} :location -1}}"


def _part(lower: int, bound: str | None = None) -> dict[str, Any]:
    """The partition of a hundred tier values, with its lower bound as its ID."""
    text = (
        "{PARTITIONBOUNDSPEC :strategy r :is_default false :modulus 0 :remainder 0 :listdatums <>"
        f" :lowerdatums ({_datum(lower)}) :upperdatums ({_datum(lower + 100)}) :location -1}}"
    )
    return leaf(lower) | {"bound": text if bound is None else bound}


def _shape(*parts: dict[str, Any]) -> dict[str, Any]:
    return {**SHAPE, "partition_key": [1], "leaves": list(parts)}


_DEFAULT = _part(1, "{PARTITIONBOUNDSPEC :strategy r :is_default true :lowerdatums <> :upperdatums <> :location -1}")
_FORMER = _shape(_part(0), _part(100), _part(200), _part(300), _DEFAULT)
_TIER = Tier("id", TierKind.BIGINT, cut=100, lag=5)
_KEEPING = replace(TABLE, tier=_TIER, shape=json.dumps(_FORMER))


@pytest.mark.parametrize(
    ("parts", "note", "kept"),
    [
        ((100, 200, 300, 400), {}, ()),
        ((0, 200, 300), {}, ((100, 200),)),
        ((0, 100), {}, ((200, 400),)),
        ((100, 200, 300), {}, ()),
        ((0, 100, 200, 300), {"stayed": frozenset({0, 1, 100, 300})}, ((200, 300),)),
    ],
    ids=["one came", "one went", "two went", "one below the cut-line went", "one was away"],
)
def test_what_a_note_says_of_partitions(
    parts: tuple[int, ...], note: dict[str, Any], kept: tuple[tuple[int, int], ...]
) -> None:
    decision = decided(_shape(*map(_part, parts), _DEFAULT), _KEEPING, **note)
    assert (decision.action, decision.table.kept_ranges) == (Action.FOLLOW, kept)
    assert decided(_shape(*map(_part, parts)), _KEEPING, **note).table.kept_ranges == kept, (
        "the DEFAULT partition has none"
    )


def test_bounds_that_cannot_be_told_may_be_any() -> None:
    former = _shape(_part(100), _part(200, "{PARTITIONBOUNDSPEC :strategy r :is_default false ...}"))
    table = replace(_KEEPING, shape=json.dumps(former))
    assert decided(_shape(_part(100)), table).table.kept_ranges == (EVERY_VALUE,)


def test_ranges_stay_until_the_cutline_passes_them() -> None:
    assert united([(300, 400), (100, 200), (200, 250), (400, 400), (0, 50)], 50) == ((100, 250), (300, 400))
    table = replace(_KEEPING, kept_ranges=((0, 100), (200, 300)))
    kept = KeptRanges.of(table)
    assert kept is not None
    assert kept.holds(pa.chunked_array([[50, 199], [200, 299, 300]])).tolist() == [False, False, True, True, False]
    assert KeptRanges.of(replace(table, tier=replace(_TIER, cut=300))) is None
    assert KeptRanges.of(replace(table, tier=None)) is None, "the lake is to be as the heap"
