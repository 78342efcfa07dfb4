"""Ranges of the tier key whose partitions went, while the lake keeps their rows: known from the note on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest

from mirror_pump.lake.contents.kept_ranges import KeptRanges, united
from mirror_pump.lake.contents.partition_bounds import HIGHEST, tier_range
from mirror_pump.model import EVERYTHING_IN_HEAP, Lsn, Tier, TierKind
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.pipeline.schema.decisions import Action
from tests.unit.pipeline.schema.shapes import SHAPE, TABLE, decided, leaf


def _datum(number: int, size: int = 4, type_oid: int = 23, order: Literal["little", "big"] = "little") -> str:
    content = " ".join(str(byte) for byte in number.to_bytes(8, order, signed=True))
    const = (
        f"{{CONST :consttype {type_oid} :constlen {size} :constisnull false :location -1"
        f" :constvalue {size} [ {content} ]}}"
    )
    return f"{{PARTITIONRANGEDATUM :kind 0 :value {const} :location -1}}"


def _bound(lower: str, upper: str) -> str:
    return (
        "{PARTITIONBOUNDSPEC :strategy r :is_default false :modulus 0 :remainder 0 :listdatums <>"
        f" :lowerdatums ({lower}) :upperdatums ({upper}) :location -1}}"
    )


def _part(lower: int, bound: str | None = None) -> dict[str, Any]:
    """The partition of a hundred tier values, with its lower bound as its ID."""
    return leaf(lower) | {"bound": _bound(_datum(lower), _datum(lower + 100)) if bound is None else bound}


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
    assert decision.kept_ranges == kept


@pytest.mark.parametrize("exact", [True, False])
def test_rows_that_come_with_a_partition_below_the_cutline_are_not_copied(exact: bool) -> None:
    """They become corrections."""
    table = replace(_KEEPING, shape=json.dumps(_shape(_part(200), _DEFAULT)))
    for lower, action in ((0, Action.FOLLOW), (100, Action.COPY_AGAIN)):
        shape = _shape(_part(lower), _part(200), _DEFAULT)
        assert decided(shape, table, exact=exact, filled=frozenset({lower})).action is action


def test_the_default_partition_has_what_no_other_has() -> None:
    """Rows of its owner's, which came before the mirror's trigger."""
    former = _shape(_part(100), _part(300), _DEFAULT)
    table = replace(_KEEPING, shape=json.dumps(former))
    assert decided(_shape(_part(100), _part(300)), table).kept_ranges == ((200, 300), (400, HIGHEST))
    unknown = _part(300, "{PARTITIONBOUNDSPEC :strategy r :is_default false ...}")
    table = replace(_KEEPING, shape=json.dumps(_shape(_part(100), unknown, _DEFAULT)))
    assert decided(_shape(_part(100), unknown), table).kept_ranges == ()


def test_bounds_that_cannot_be_told_add_no_range() -> None:
    """Neither all values, which would hide every row that the lake alone has."""
    former = _shape(_part(100), _part(200, "{PARTITIONBOUNDSPEC :strategy r :is_default false ...}"))
    table = replace(_KEEPING, shape=json.dumps(former))
    assert decided(_shape(_part(100)), table).table.kept_ranges == ()


_DAYS, _MICROSECONDS = 10_957, 946_684_800_000_000


@pytest.mark.parametrize(
    ("kind", "size", "number", "value"),
    [
        (TierKind.BIGINT, 2, 20_000, 20_000),
        (TierKind.BIGINT, 4, 1_700_000_000, 1_700_000_000),
        (TierKind.BIGINT, 4, -(2**31), -(2**31)),
        (TierKind.BIGINT, 8, 2**62, 2**62),
        (TierKind.DATE, 4, 1, _DAYS + 1),
        (TierKind.DATE, 4, -(2**31), EVERYTHING_IN_HEAP),
        (TierKind.DATE, 4, 2**31 - 1, HIGHEST),
        (TierKind.TIMESTAMP, 8, -1, _MICROSECONDS - 1),
        (TierKind.TIMESTAMPTZ, 8, -(2**63), EVERYTHING_IN_HEAP),
        (TierKind.TIMESTAMPTZ, 8, 2**63 - 2, HIGHEST - 1),
        (TierKind.DATE, 8, 1, None),
    ],
)
def test_every_bound_of_a_tier_key_is_told(kind: TierKind, size: int, number: int, value: int | None) -> None:
    """Of its domains too: the type of a bound does not matter."""
    bound = _bound(_datum(number, size, 99_999), "{PARTITIONRANGEDATUM :kind 1 :value <>}")
    assert tier_range(_shape(_part(0, bound)), 0, kind) == (None if value is None else (value, HIGHEST))


@pytest.mark.parametrize(("size", "value"), [(4, 258), (8, None)])
def test_bytes_whose_order_is_not_known(size: int, value: int | None) -> None:
    """Their own padding tells it of those that have some."""
    shape = {**_shape(_part(0, _bound(_datum(258, size), _datum(258, size)))), "partition_key": None}
    assert tier_range(shape, 0, TierKind.BIGINT) == (None if value is None else (value, value))
    reversed_shape = {**_shape(_part(0, _bound(_datum(258, 4, order="big"), _datum(300, 4))))}
    assert tier_range(reversed_shape, 0, TierKind.BIGINT) is None


def test_ranges_stay_until_the_cutline_passes_them() -> None:
    assert united([(300, 400), (100, 200), (200, 250), (400, 400), (0, 50)], 50) == ((100, 250), (300, 400))
    table = replace(_KEEPING, kept_ranges=((0, 100), (200, 300)))
    kept = KeptRanges.of(table)
    assert kept is not None
    assert kept.holds(pa.chunked_array([[50, 199], [200, 299, 300]])).tolist() == [False, False, True, True, False]
    assert KeptRanges.of(replace(table, tier=replace(_TIER, cut=300))) is None
    assert KeptRanges.of(replace(table, tier=None)) is None, "the lake is to be as the heap"


def test_what_changes_of_one_publish_keep_and_lose() -> None:
    """A TRUNCATE before the copy has removed what the copy would lose; one behind it has not."""
    first, again = (
        TableChange(_KEEPING, _KEEPING.start_lsn, 0),
        replace(_KEEPING, start_lsn=Lsn(_KEEPING.start_lsn + 1)),
    )
    goes, truncated = replace(first, kept_ranges=((100, 200),), kept_before=2), replace(first, emptied=True)
    copied = TableChange(again, first.former_lsn, 3, lost=((300, 400),))
    behind = TableChange(again, again.start_lsn, 4, kept_ranges=((500, 600),), kept_before=4)

    def combined(*changes: TableChange) -> tuple[object, ...]:
        total = changes[0]
        for change in changes[1:]:
            total = replace(change.with_kept_of(total), former_lsn=total.former_lsn)
        return total.kept_ranges, total.kept_before, total.lost, total.emptied

    assert combined(goes, first) == (((100, 200),), 2, (), False)
    assert combined(goes, truncated)[0::3] == ((), True)
    assert combined(goes, copied, behind) == (((500, 600),), 4, ((100, 200), (300, 400)), False)
    assert combined(goes, truncated, copied)[2:] == (((300, 400),), True)
    assert combined(goes, copied, replace(behind, kept_ranges=(), emptied=True))[2:] == (
        ((100, 200), (300, 400)),
        False,
    )
