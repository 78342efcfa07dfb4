"""What a plan opens and finds: boundary cases, one by one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary, write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DoubleType, IntegerType, NestedField, StringType, StructType, TimestampType

from mirror_pump.errors import ForeignTable, UsageError
from mirror_pump.lake.metadata.manifest_list import read_list
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.read_plan.partition_pruning import PartitionFilter
from mirror_pump.lake.read_plan.plan import read_plan
from mirror_pump.lake.read_plan.predicates import bound_predicate
from mirror_pump.lake.read_plan.table_view import SpecField
from mirror_pump.lake.read_plan.value_tests import ONLY_NULL, UNKNOWN, ValueRange, may_match
from mirror_pump.lake.storage import StorageOptions

_SCHEMA = Schema(
    NestedField(1, "n", IntegerType(), required=False),
    NestedField(2, "s", StringType(), required=False),
    NestedField(3, "d", DoubleType(), required=False),
    NestedField(4, "ts", TimestampType(), required=False),
    NestedField(5, "o", StructType(NestedField(6, "inner", IntegerType(), required=True)), required=False),
)
_FIVE = ValueRange(5, 5, nulls=False, nans=False)
_FIVE_OR_NULL = _FIVE._replace(nulls=True)


def _filter(predicate: BooleanExpression, source: str, transform: str) -> PartitionFilter:
    field = SpecField(1000, _SCHEMA.find_field(source).field_id, "p", parse_transform(transform))
    return PartitionFilter(bound_predicate(predicate, _SCHEMA), _SCHEMA, (field,))


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


@pytest.mark.parametrize(
    ("predicate", "known", "expected"),
    [
        # A single value: the ends belong to the range.
        (EqualTo("n", 5), _FIVE, True),
        (EqualTo("n", 4), _FIVE, False),
        (EqualTo("n", 6), _FIVE, False),
        (LessThanOrEqual("n", 5), _FIVE, True),
        (GreaterThanOrEqual("n", 5), _FIVE, True),
        (LessThan("n", 5), _FIVE, False),
        (GreaterThan("n", 5), _FIVE, False),
        (In("n", [1, 5, 9]), _FIVE, True),
        (In("n", [1, 4, 6, 9]), _FIVE, False),
        (NotEqualTo("n", 5), _FIVE, False),
        (NotIn("n", [4, 5]), _FIVE, False),
        # NULL among the values matches `is null`, and may match what is not a comparison with a value.
        (IsNull("n"), _FIVE, False),
        (IsNull("n"), _FIVE_OR_NULL, True),
        (NotEqualTo("n", 5), _FIVE_OR_NULL, True),
        (EqualTo("n", 4), _FIVE_OR_NULL, False),
        (NotNull("n"), ONLY_NULL, False),
        (EqualTo("n", 5), ONLY_NULL, False),
        # Without bounds, anything may be.
        (EqualTo("n", 5), UNKNOWN, True),
        (LessThan("n", 5), ValueRange(low=5), False),
        (GreaterThan("n", 5), ValueRange(low=5), True),
        # Cut bounds of text.
        (EqualTo("s", "abcz"), ValueRange(b"abc", b"abd"), True),
        (StartsWith("s", "abcdef"), ValueRange(b"abc", b"abd"), True),
        (StartsWith("s", "abd"), ValueRange(b"abc", b"abd"), True),
        (StartsWith("s", "abe"), ValueRange(b"abc", b"abd"), False),
        (NotStartsWith("s", "ab"), ValueRange(b"abc", b"abd", nulls=False, nans=False), False),
        (NotStartsWith("s", "abc"), ValueRange(b"abc", b"abd", nulls=False, nans=False), True),
        (EqualTo("s", ""), ValueRange(b"", b"", nulls=False), True),
        # NaN is no number, and is not in the bounds.
        (GreaterThan("d", 9.0), ValueRange(1.0, 2.0), False),
        (IsNaN("d"), ValueRange(1.0, 2.0, nans=False), False),
        (IsNaN("d"), ValueRange(1.0, 2.0), True),
        (NotEqualTo("d", 5.0), ValueRange(5.0, 5.0, nulls=False, nans=True), True),
        (EqualTo("d", 0.0), ValueRange(-0.0, -0.0), True),
    ],
)
def test_ends_nulls_and_cut_bounds(predicate: BooleanExpression, known: ValueRange, expected: bool) -> None:  # noqa: FBT001
    bound = bound_predicate(predicate, _SCHEMA)
    assert isinstance(bound, BoundPredicate)
    assert may_match(bound)(known) is expected


@pytest.mark.parametrize(
    ("predicate", "summary", "expected"),
    [
        (EqualTo("n", 5), PartitionFieldSummary(True, False, _number(5), _number(5)), True),
        (EqualTo("n", 4), PartitionFieldSummary(True, False, _number(5), _number(5)), False),
        (IsNull("n"), PartitionFieldSummary(True, False, _number(5), _number(5)), True),
        (IsNull("n"), PartitionFieldSummary(False, False, _number(5), _number(5)), False),
        (EqualTo("n", 4), PartitionFieldSummary(True, None, None, None), False),
        (NotNull("n"), PartitionFieldSummary(True, None, None, None), False),
        # A writer that has no bounds, although not all is NULL, did not write them.
        (EqualTo("n", 4), PartitionFieldSummary(False, None, None, None), True),
        (EqualTo("n", 4), PartitionFieldSummary(False, False, None, _number(9)), True),
    ],
)
def test_summaries_of_manifests(predicate: BooleanExpression, summary: PartitionFieldSummary, expected: bool) -> None:  # noqa: FBT001
    assert _filter(predicate, "n", "identity").may_hold([summary]) is expected
    assert _filter(predicate, "n", "identity").may_hold(None), "without summaries nothing is known"
    assert _filter(predicate, "n", "identity").may_hold([]), "without summaries nothing is known"


def test_partitions_of_times_before_1970_may_be_rounded_up() -> None:
    before = EqualTo("ts", "1969-12-31T12:00:00")
    assert _filter(before, "ts", "day").may_match((-1,))
    assert _filter(before, "ts", "day").may_match((0,)), "older engines rounded towards 1970"
    assert not _filter(before, "ts", "day").may_match((1,))


def test_truncated_integers_wrap_around() -> None:
    least = EqualTo("n", -(2**31))
    assert _filter(least, "n", "truncate[10]").may_match((2**31 - 2,))
    assert not _filter(least, "n", "truncate[10]").may_match((10,))


def test_an_unknown_transform_rules_nothing_out() -> None:
    assert _filter(EqualTo("n", 5), "n", "zorder[3]").may_match(("x",))
    assert _filter(EqualTo("n", 5), "n", "void").may_match((None,))


def test_a_field_of_a_struct_is_null_where_the_struct_is() -> None:
    assert str(bound_predicate(IsNull("o.inner"), _SCHEMA)).startswith("BoundIsNull")


@pytest.mark.parametrize(
    "predicate",
    [EqualTo("missing", 1), EqualTo("n", "text"), GreaterThan("d", math.nan), EqualTo("s", "\ud800"), "n >", "n = = 1"],
)
def test_a_predicate_that_does_not_apply_says_so(predicate: BooleanExpression | str) -> None:
    with pytest.raises(UsageError):
        bound_predicate(predicate, _SCHEMA)


@pytest.mark.parametrize("too_much", [2**40, -(2**40)])
def test_literals_beyond_a_columns_range(too_much: int) -> None:
    assert str(bound_predicate(EqualTo("n", too_much), _SCHEMA)) == "AlwaysFalse()"
    assert "NotNull" in str(bound_predicate(NotEqualTo("n", too_much), _SCHEMA))
    both = bound_predicate(Or(In("n", [too_much, 2**41]), And(In("n", [too_much, 3, 4]), NotNull("n"))), _SCHEMA)
    assert "2147483647" not in str(both)


def test_a_table_of_format_version_3_is_refused() -> None:
    with pytest.raises(ForeignTable, match="version 3"):
        read_plan(TableMetadata({"format-version": 3, "location": "file:///t"}), StorageOptions())


def test_a_snapshot_that_is_gone(tmp_path: Path) -> None:
    document = {"format-version": 2, "location": f"file://{tmp_path}", "snapshots": [], "schemas": []}
    with pytest.raises(UsageError, match="no snapshot 7"):
        read_plan(TableMetadata(document), StorageOptions(), snapshot_id=7)




def test_manifests_without_counts_are_not_passed_over(tmp_path: Path) -> None:
    """Format version 1 does not require them in a list."""
    io = PyArrowFileIO()
    line = ManifestFile.from_args(
        manifest_path="file:///m.avro",
        manifest_length=1,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=1,
    )
    location = f"file://{tmp_path}/list.avro"
    with write_manifest_list(1, io.new_output(location), 1, None, None, "null") as written:
        written.add_manifests([line])
    (manifest,) = read_list(location, StorageOptions())
    assert manifest.live_files
