"""What a plan opens and finds: boundary cases, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression, BoundPredicate
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary, write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DoubleType, IntegerType, NestedField, StringType, StructType, TimestampType

from mirror_pump.errors import ForeignTable, UsageError
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.metadata.table_view import SpecField
from mirror_pump.tables.read_plan.partition_pruning import PartitionFilter
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.predicates import bound_predicate
from mirror_pump.tables.read_plan.value_tests import ONLY_NULL, UNKNOWN, ValueRange, may_match

e: Any = expressions
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


def _summary(*, nulls: bool, nans: bool | None, low: bytes | None, high: bytes | None) -> PartitionFieldSummary:
    return PartitionFieldSummary(nulls, nans, low, high)


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


@pytest.mark.parametrize(
    ("predicate", "known", "expected"),
    [
        # A single value: the ends belong to the range.
        (e.EqualTo("n", 5), _FIVE, True),
        (e.EqualTo("n", 4), _FIVE, False),
        (e.EqualTo("n", 6), _FIVE, False),
        (e.LessThanOrEqual("n", 5), _FIVE, True),
        (e.GreaterThanOrEqual("n", 5), _FIVE, True),
        (e.LessThan("n", 5), _FIVE, False),
        (e.GreaterThan("n", 5), _FIVE, False),
        (e.In("n", [1, 5, 9]), _FIVE, True),
        (e.In("n", [1, 4, 6, 9]), _FIVE, False),
        (e.NotEqualTo("n", 5), _FIVE, False),
        (e.NotIn("n", [4, 5]), _FIVE, False),
        # NULL among the values matches `is null`, and may match what is not a comparison with a value.
        (e.IsNull("n"), _FIVE, False),
        (e.IsNull("n"), _FIVE_OR_NULL, True),
        (e.NotEqualTo("n", 5), _FIVE_OR_NULL, True),
        (e.EqualTo("n", 4), _FIVE_OR_NULL, False),
        (e.NotNull("n"), ONLY_NULL, False),
        (e.EqualTo("n", 5), ONLY_NULL, False),
        # Without bounds, anything may be.
        (e.EqualTo("n", 5), UNKNOWN, True),
        (e.LessThan("n", 5), ValueRange(low=5), False),
        (e.GreaterThan("n", 5), ValueRange(low=5), True),
        # Cut bounds of text.
        (e.EqualTo("s", "abcz"), ValueRange(b"abc", b"abd"), True),
        (e.StartsWith("s", "abcdef"), ValueRange(b"abc", b"abd"), True),
        (e.StartsWith("s", "abd"), ValueRange(b"abc", b"abd"), True),
        (e.StartsWith("s", "abe"), ValueRange(b"abc", b"abd"), False),
        (e.NotStartsWith("s", "ab"), ValueRange(b"abc", b"abd", nulls=False, nans=False), False),
        (e.NotStartsWith("s", "abc"), ValueRange(b"abc", b"abd", nulls=False, nans=False), True),
        (e.EqualTo("s", ""), ValueRange(b"", b"", nulls=False), True),
        # NaN is no number, and is not in the bounds.
        (e.GreaterThan("d", 9.0), ValueRange(1.0, 2.0), False),
        (e.IsNaN("d"), ValueRange(1.0, 2.0, nans=False), False),
        (e.IsNaN("d"), ValueRange(1.0, 2.0), True),
        (e.NotEqualTo("d", 5.0), ValueRange(5.0, 5.0, nulls=False, nans=True), True),
        (e.EqualTo("d", 0.0), ValueRange(-0.0, -0.0), True),
    ],
)
def test_ends_nulls_and_cut_bounds(predicate: BooleanExpression, known: ValueRange, expected: bool) -> None:
    bound = bound_predicate(predicate, _SCHEMA)
    assert isinstance(bound, BoundPredicate)
    assert may_match(bound)(known) is expected


@pytest.mark.parametrize(
    ("predicate", "summary", "expected"),
    [
        (e.EqualTo("n", 5), _summary(nulls=True, nans=False, low=_number(5), high=_number(5)), True),
        (e.EqualTo("n", 4), _summary(nulls=True, nans=False, low=_number(5), high=_number(5)), False),
        (e.IsNull("n"), _summary(nulls=True, nans=False, low=_number(5), high=_number(5)), True),
        (e.IsNull("n"), _summary(nulls=False, nans=False, low=_number(5), high=_number(5)), False),
        (e.EqualTo("n", 4), _summary(nulls=True, nans=None, low=None, high=None), False),
        (e.NotNull("n"), _summary(nulls=True, nans=None, low=None, high=None), False),
        # A writer that has no bounds, although not all is NULL, did not write them.
        (e.EqualTo("n", 4), _summary(nulls=False, nans=None, low=None, high=None), True),
        (e.EqualTo("n", 4), _summary(nulls=False, nans=False, low=None, high=_number(9)), True),
    ],
)
def test_summaries_of_manifests(predicate: BooleanExpression, summary: PartitionFieldSummary, expected: bool) -> None:
    assert _filter(predicate, "n", "identity").may_contain([summary]) is expected
    assert _filter(predicate, "n", "identity").may_contain(None), "without summaries nothing is known"
    assert _filter(predicate, "n", "identity").may_contain([]), "without summaries nothing is known"


def test_partitions_of_times_before_1970_may_be_rounded_up() -> None:
    before = e.EqualTo("ts", "1969-12-31T12:00:00")
    assert _filter(before, "ts", "day").may_match((-1,))
    assert _filter(before, "ts", "day").may_match((0,)), "older engines rounded towards 1970"
    assert not _filter(before, "ts", "day").may_match((1,))


def test_truncated_integers_wrap_around() -> None:
    least = e.EqualTo("n", -(2**31))
    assert _filter(least, "n", "truncate[10]").may_match((2**31 - 2,))
    assert not _filter(e.EqualTo("n", 15), "n", "truncate[10]").may_match((20,))


def test_an_unknown_transform_rules_nothing_out() -> None:
    assert _filter(e.EqualTo("n", 5), "n", "zorder[3]").may_match(("x",))
    assert _filter(e.EqualTo("n", 5), "n", "void").may_match((None,))


def test_a_field_of_a_struct_is_null_where_the_struct_is() -> None:
    assert str(bound_predicate(e.IsNull("o.inner"), _SCHEMA)).startswith("BoundIsNull")


@pytest.mark.parametrize(
    "predicate",
    [e.EqualTo("missing", 1), e.EqualTo("n", "text"), e.EqualTo("s", "\ud800"), "n >", "n = = 1"],
)
def test_a_predicate_that_does_not_apply_says_so(predicate: BooleanExpression | str) -> None:
    with pytest.raises(UsageError):
        bound_predicate(predicate, _SCHEMA)


@pytest.mark.parametrize("too_much", [2**40, -(2**40)])
def test_literals_beyond_a_columns_range(too_much: int) -> None:
    assert str(bound_predicate(e.EqualTo("n", too_much), _SCHEMA)) == "AlwaysFalse()"
    assert "NotNull" in str(bound_predicate(e.NotEqualTo("n", too_much), _SCHEMA))
    both = bound_predicate(e.Or(e.In("n", [too_much, 2**41]), e.In("n", [too_much, 3, 4])), _SCHEMA)
    assert "2147483647" not in str(both)


def test_a_table_of_format_version_4_is_refused() -> None:
    with pytest.raises(ForeignTable, match="version 4"):
        read_plan(TableMetadata({"format-version": 4, "location": "file:///t"}), StorageOptions())


@pytest.mark.parametrize(
    "kind", ["vector", {"type": "list", "element-id": 2, "element": "variant", "element-required": False}]
)
def test_a_column_of_a_type_that_is_not_known_is_refused(kind: object) -> None:
    column = {"id": 1, "name": "doc", "type": kind, "required": False}
    document = {"format-version": 3, "location": "file:///t", "schemas": [{"schema-id": 0, "fields": [column]}]}
    with pytest.raises(ForeignTable, match=r"vector|doc has variants within a list"):
        read_plan(TableMetadata({**document, "current-schema-id": 0}), StorageOptions())


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
    (manifest,) = read_list(Snapshot({"snapshot-id": 1, "manifest-list": location}), StorageOptions())
    assert manifest.live_files
