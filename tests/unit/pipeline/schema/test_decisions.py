"""What can be proven about a changed table, and what cannot: one fact at a time, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from decoders.columns import ColumnType
from mirror_pump.model import (
    TableMode,
    TableState,
    Tier,
    TierKind,
)
from mirror_pump.pipeline.schema.decisions import Action, decide
from mirror_pump.source.relations.change_notes import Note, describe_shape
from tests.unit.pipeline.schema.shapes import (
    IDENTITY,
    RESOLVED,
    SHAPE,
    TABLE,
    adding,
    column_shape,
    decided,
    leaf,
    with_column,
)


def test_the_same_shape_is_nothing() -> None:
    assert decided(SHAPE).action is Action.NOTHING
    assert decided(SHAPE, exact=False).action is Action.NOTHING


def test_a_renamed_column_keeps_its_field_id_and_a_new_one_gets_the_next() -> None:
    decision = decided({**SHAPE, "columns": [column_shape(1, "key", (23, -1), not_null=True), *adding()["columns"][2:]],
                       "identity": {**IDENTITY, "key": ["key"]}})  # fmt: skip
    assert decision.action is Action.FOLLOW
    assert [(column.name, column.field_id) for column in decision.table.columns] == [
        ("key", 1),
        ("n", 3),
        ("net", 4),
        ("m", 5),
        ("z", 9),
    ]
    assert (decision.table.key, decision.table.next_field_id) == (("key",), 10)
    # A dropped column does not pass on its ID to a later column with its name.
    present = json.loads(decision.table.shape)
    again = decided({**present, "columns": [*present["columns"], column_shape(8, "v", (25, -1))]}, decision.table)
    assert [(column.name, column.field_id) for column in again.table.columns][-1] == ("v", 10)


def test_a_change_of_the_lake_type_names_both_types_and_says_what_to_do() -> None:
    decision = decided(with_column(2, modifier=-1, sql="numeric"), rewritten=4)
    assert decision.action is Action.COPY_AGAIN
    assert "n is numeric now, and was numeric(10,2) (in the lake string, and was decimal(10,2))" in decision.reason
    assert "n is string instead of decimal(10,2)" in decision.remedy
    assert "--column 'n=decimal(38,9)'" in decision.remedy
    # Text in Postgres too: there is nothing to choose.
    decision = decided(with_column(2, type=25, modifier=-1, sql="text"), rewritten=4)
    assert "n is string instead of decimal(10,2)" in decision.remedy
    assert "--column" not in decision.remedy
    wider = decided(with_column(2, modifier=917510, sql="numeric(14,2)"))
    assert "(in the lake decimal(14,2), and was decimal(10,2))" in wider.reason
    assert decided(SHAPE, rewritten=4).remedy == ""


def test_a_column_that_is_left_out_by_a_mask_comes_with_the_way_to_have_it() -> None:
    masked = replace(TABLE.columns[2], type=ColumnType.parse("string masked as null"), chosen=True)
    rules = replace(TABLE, columns=(*TABLE.columns[:2], masked, *TABLE.columns[3:]), leaves_out_new=True)
    for table, options in (
        (rules, f"--mask {masked.name}=null"),
        (
            replace(rules, column_list=True),
            f"--columns-only {','.join((*(column.name for column in TABLE.columns), 'z'))}",
        ),
    ):
        decision = decided(adding(), table)
        assert (decision.action, decision.reason) == (Action.FOLLOW, "column z is new, and left out")
        assert decision.remedy.startswith("Nothing, if z is to stay out of the lake")
        assert "`mirror-pump unregister public.t`, then `mirror-pump register public.t " in decision.remedy
        assert options in decision.remedy
        assert "--exclude-column z" not in decision.remedy
    assert decided(adding()).remedy == ""


def test_another_spelling_of_a_type_is_followed_without_a_word() -> None:
    """A search path leaves out schemas: of this description, or of the one that the catalog has."""
    for shape in (with_column(2, sql="pg_catalog.numeric(10,2)"), SHAPE):
        known = replace(
            TABLE,
            columns=tuple(replace(column, type_sql=f"here.{column.type_sql}") for column in TABLE.columns)
            if shape is SHAPE
            else TABLE.columns,
        )
        decision = decided(shape, known)
        assert (decision.action, decision.reason) == (Action.FOLLOW, "")
        assert decision.table.columns[2].type_sql == shape["columns"][2]["sql"]
    # The type has another schema, or another name: that is a change.
    moved = decided(with_column(2, sql="there.numeric(10,2)"), replace(TABLE, columns=known.columns))
    assert "n is there.numeric(10,2) now, and was here.numeric(10,2)" in moved.reason


@pytest.mark.parametrize(
    ("shape", "note", "action"),
    [
        (adding(), {}, Action.FOLLOW),
        (adding(filled=True), {}, Action.COPY_AGAIN),
        (adding(), {"rewritten": 2}, Action.COPY_AGAIN),
        (adding(), {"exact": False}, Action.COPY_AGAIN),
        (adding(generated=True), {"rewritten": 2}, Action.FOLLOW),
        (with_column(4, generated=False), {}, Action.COPY_AGAIN),
        (with_column(1, type=25, modifier=-1, sql="text"), {}, Action.FOLLOW),
        (with_column(1, type=25, modifier=-1, sql="text"), {"rewritten": 4}, Action.COPY_AGAIN),
        (with_column(1, type=25, modifier=-1, sql="text"), {"exact": False}, Action.COPY_AGAIN),
        (with_column(2, modifier=917510, sql="numeric(14,2)"), {}, Action.FOLLOW),
        (with_column(2, modifier=917510, sql="numeric(14,2)"), {"rewritten": 4}, Action.COPY_AGAIN),
        (with_column(3, type=869, sql="inet"), {}, Action.COPY_AGAIN),
        (with_column(0, type=26, sql="oid"), {}, Action.COPY_AGAIN),
        (with_column(0, type=20, sql="bigint"), {"rewritten": 4}, Action.COPY_AGAIN),
        (SHAPE, {"rewritten": 4}, Action.COPY_AGAIN),
        (SHAPE, {"rewritten": 8}, Action.NOTHING),
        ({**SHAPE, "name": "u"}, {}, Action.FOLLOW),
        ({**SHAPE, "name": "u"}, {"exact": False}, Action.FOLLOW),
        ({**SHAPE, "leaves": [leaf(20000), leaf(20001)]}, {}, Action.FOLLOW),
        (
            {**SHAPE, "leaves": [leaf(20000), leaf(20001)]},
            {"filled": frozenset({20001})},
            Action.COPY_AGAIN,
        ),
        ({**SHAPE, "leaves": [leaf(20000), leaf(20001)]}, {"exact": False}, Action.COPY_AGAIN),
        ({**SHAPE, "leaves": []}, {}, Action.COPY_AGAIN),
        (SHAPE, {"stayed": frozenset({20000})}, Action.NOTHING),
        (SHAPE, {"stayed": frozenset()}, Action.COPY_AGAIN),
        (adding(), {"filled_columns": frozenset({7})}, Action.COPY_AGAIN),
        ({**SHAPE, "inherits": True}, {}, Action.FAIL),
        ({**SHAPE, "persistence": "u"}, {}, Action.FAIL),
        ({**SHAPE, "identity": {**IDENTITY, "key": []}}, {}, Action.WAIT),
        ({**SHAPE, "identity": {**IDENTITY, "setting": "n"}}, {}, Action.WAIT),
        ({**SHAPE, "identity": {**IDENTITY, "immediate": False}}, {}, Action.WAIT),
        ({**SHAPE, "identity": {**IDENTITY, "setting": "f"}}, {}, Action.FOLLOW),
    ],
)
def test_the_action(shape: dict[str, Any], note: dict[str, Any], action: Action) -> None:
    assert decided(shape, **note).action is action


def test_values_of_a_generated_column_are_copied_again_if_a_rewrite_may_have_recomputed_them() -> None:
    computed = with_column(1, computed=True)
    table = replace(TABLE, shape=json.dumps(computed))
    assert decided(computed, table, rewritten=8).action is Action.NOTHING
    assert decided(computed, table, rewritten=2).action is Action.COPY_AGAIN
    assert decided(with_column(1, computed=True, name="w"), table, rewritten=2).action is Action.COPY_AGAIN
    # DROP EXPRESSION keeps the existing values; together with SET EXPRESSION they may be others.
    assert decided(with_column(1, computed=False), table).action is Action.FOLLOW
    assert decided(with_column(1, computed=False), table, rewritten=2).action is Action.COPY_AGAIN
    # A column that is not mirrored has no values in the lake.
    left_out = with_column(4, computed=True)
    assert decided(left_out, replace(TABLE, shape=json.dumps(left_out)), rewritten=2).action is Action.NOTHING


def test_another_key_is_copied_again_under_it() -> None:
    shape = with_column(2, not_null=True) | {"identity": {**IDENTITY, "key": ["n"]}}
    decision = decided(shape)
    assert (decision.action, decision.table.key) == (Action.COPY_AGAIN, ("n",))


def test_a_type_that_does_not_widen_gets_a_new_field_id() -> None:
    decision = decided(with_column(2, type=25, modifier=-1, sql="text"), rewritten=4)
    assert decision.action is Action.COPY_AGAIN
    assert [(column.name, column.field_id) for column in decision.table.columns][2] == ("n", 9)
    widened = decided(with_column(0, type=20, sql="bigint"), rewritten=4)
    assert widened.table.columns[0].field_id == 1


def test_without_a_trigger_a_new_file_means_that_values_may_be_others() -> None:
    before = {**SHAPE, "leaves": [leaf(20000, 1)]}
    table = replace(TABLE, shape=json.dumps(before))
    after = {**SHAPE, "leaves": [leaf(20000, 2)]}
    assert decided(after, table, exact=False).action is Action.COPY_AGAIN
    # Once triggers report why heaps are rewritten, shapes have no files; that alone changes nothing.
    assert decided(SHAPE, table, exact=False).action is Action.FOLLOW
    assert decided(SHAPE, table, filled=frozenset({20000})).action is Action.COPY_AGAIN, "it was another by then"
    # If no file was recorded before, it may have been another one until recently.
    assert decided(after, exact=False).action is Action.COPY_AGAIN
    assert decided(after).action is Action.COPY_AGAIN


@pytest.mark.parametrize(
    ("before", "after", "note", "action"),
    [
        ((["700", None], False), (["701", None], False), {}, Action.COPY_AGAIN),
        ((["700", None], False), (["701", None], False), {"exact": True}, Action.FOLLOW),
        ((["700", None], False), (["701", "{a=r/a}"], False), {}, Action.FOLLOW),
        ((["700", None], True), (["701", None], False), {}, Action.FOLLOW),
        ((None, True), (["701", None], True), {}, Action.FOLLOW),
    ],
    ids=["a rewrite", "told", "a GRANT", "its default is gone", "its missing value is gone"],
)
def test_an_unannounced_rewrite_of_a_column_means_that_values_may_differ(
    before: tuple[Any, bool], after: tuple[Any, bool], note: dict[str, Any], action: Action
) -> None:
    former, present = (with_column(2, altered=altered, filled=filled) for altered, filled in (before, after))
    table = replace(TABLE, shape=json.dumps(former))
    assert decided(present, table, **{"exact": False, **note}).action is action


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        ({"1": {"7": "ok"}}, {"1": {"7": "ok", "8": "new"}}, Action.FOLLOW),
        ({"1": {"7": "ok"}}, {"1": {"7": "fine"}}, Action.COPY_AGAIN),
        ({"1": {"7": "ok"}}, {}, Action.FOLLOW),
        ({"1": None}, {"1": {"7": "first"}}, Action.FOLLOW),
        ({"1": {"1": 23}}, {"1": {"1": 23, "2": 23}}, Action.COPY_AGAIN),
        ({"1": {"1": 23, "2": 23}}, {"1": {"1": 23}}, Action.COPY_AGAIN),
    ],
)
def test_what_is_part_of_the_text_counts(before: dict[str, Any], after: dict[str, Any], action: Action) -> None:
    table = replace(TABLE, shape=json.dumps({**SHAPE, "types": before}))
    assert decided({**SHAPE, "types": after}, table, settled=True).action is action
    waits = Action.WAIT if action is Action.COPY_AGAIN else action
    assert decided({**SHAPE, "types": after}, table).action is waits, "what was written before is to come"


def test_a_dropped_table_is_no_failed_one() -> None:
    decision = decide(TABLE, Note(TABLE.table_id, exact=True, gone=True), None)
    assert decision.action is Action.DROPPED
    assert "readable as of its last frontier" in decision.reason


def test_an_unexplained_rewrite_has_to_wait() -> None:
    assert decide(TABLE, Note(TABLE.table_id, rewritten=4), None).action is Action.WAIT


def test_with_heap_retention_a_partition_that_goes_takes_no_rows_along() -> None:
    table = replace(TABLE, tier=Tier("id", TierKind.BIGINT))
    renamed = {**SHAPE, "leaves": [], "columns": [{**SHAPE["columns"][0], "name": "at"}, *SHAPE["columns"][1:]]}
    renamed["identity"] = {**IDENTITY, "key": ["at"]}
    decision = decide(
        table, Note(TABLE.table_id, exact=True, shape=renamed), describe_shape(renamed, TABLE.table_id, RESOLVED)
    )
    assert decision.action is Action.FOLLOW
    assert decision.table.tier == Tier("at", TierKind.BIGINT), "the tier key under its new name"


WITH_RETENTION = replace(TABLE, tier=Tier("id", TierKind.BIGINT, cut=10, lag=5))
"""Rows below 10 are in the lake only."""


@pytest.mark.parametrize(
    ("shape", "note", "action"),
    [
        (adding(), {}, Action.FOLLOW),
        (adding(filled=True), {}, Action.FAIL),
        (adding(), {"rewritten": 2}, Action.FAIL),
        # A heap that was rewritten may have been filled, if no event trigger reports the reason.
        (adding(), {"exact": False}, Action.COPY_AGAIN),
        ({**adding(), "leaves": [leaf(20000, file=8)]}, {"exact": False}, Action.FAIL),
        (with_column(4, generated=False), {}, Action.FAIL),
        # Like USING, a new expression has no effect on rows that the heap does not hold.
        (with_column(1, computed=True), {"rewritten": 2}, Action.COPY_AGAIN),
        (with_column(1, type=23, modifier=-1, sql="integer"), {"rewritten": 4}, Action.FAIL),
        (with_column(2, modifier=917510, sql="numeric(14,2)"), {"rewritten": 4}, Action.COPY_AGAIN),
        (with_column(0, type=20, modifier=-1, sql="bigint"), {"rewritten": 4}, Action.FAIL),
        (with_column(2, not_null=True) | {"identity": {**IDENTITY, "key": ["id", "n"]}}, {}, Action.FAIL),
        ({**SHAPE, "leaves": []}, {}, Action.FOLLOW),
        (SHAPE, {"stayed": frozenset(), "filled": frozenset({20000})}, Action.COPY_AGAIN),
        (
            {**SHAPE, "leaves": [leaf(20000), leaf(20001)]},
            {"filled": frozenset({20001})},
            Action.COPY_AGAIN,
        ),
    ],
)
def test_what_old_rows_cannot_follow_fails_a_table_with_a_cutline(
    shape: dict[str, Any], note: dict[str, Any], action: Action
) -> None:
    table = WITH_RETENTION
    if note.get("exact") is False:
        table = replace(table, shape=json.dumps({**SHAPE, "leaves": [leaf(20000, file=7)]}))
        shape = {**shape, "leaves": [leaf(20000, file=7)]} if shape["leaves"] == SHAPE["leaves"] else shape
    decision = decided(shape, table, **note)
    assert decision.action is action, decision.reason
    # Before the cut-line has moved, every row is in the heap, and can be read again.
    unmoved = replace(table, tier=Tier("id", TierKind.BIGINT, lag=5))
    assert decided(shape, unmoved, **note).action is (Action.COPY_AGAIN if action is Action.FAIL else action)


@pytest.mark.parametrize(
    ("note", "state", "action", "initial"),
    [
        ({"missing": {7: "x"}}, TableState.LIVE, Action.FILL, "x"),
        ({"missing": {7: "x"}}, TableState.FILLING, Action.FILL, "x"),
        # Filled after the copy, which does not include rows below the cut-line.
        ({"missing": {7: "x"}}, TableState.COPYING, Action.FILL, "x"),
        ({"missing": {7: "x"}, "rewritten": 4}, TableState.LIVE, Action.COPY_AGAIN, "x"),
        ({"missing": {7: "x"}, "exact": False}, TableState.LIVE, Action.FAIL, None),
        # A default that was added after the column is no value of earlier rows.
        ({"missing": {7: None}}, TableState.LIVE, Action.FOLLOW, None),
        ({"missing": {7: None}, "rewritten": 4}, TableState.LIVE, Action.COPY_AGAIN, None),
    ],
)
def test_a_new_column_with_an_announced_value_does_not_fail_a_table_with_a_cutline(
    note: dict[str, Any], state: TableState, action: Action, initial: str | None
) -> None:
    decision = decided(adding(filled=True), replace(WITH_RETENTION, state=state), **note)
    assert decision.action is action, decision.reason
    if action is not Action.FAIL:
        assert decision.table.columns[-1].initial == initial
        # A later copy of the rows above the cut-line keeps files below the cut-line, which may not be filled yet.
        again = decided(adding(filled=True), decision.table, filled=frozenset({20000}), stayed=frozenset())
        assert (again.action, again.table.columns[-1].initial) == (Action.COPY_AGAIN, initial)


TIERED = replace(WITH_RETENTION, mode=TableMode.TIERED)


@pytest.mark.parametrize(
    ("shape", "note", "below", "unmoved"),
    [
        (adding(), {"exact": False, "settled": True}, Action.FOLLOW, Action.FOLLOW),
        (
            adding(filled=True),
            {"exact": False, "settled": True, "missing": {7: "x"}},
            Action.FILL,
            Action.FOLLOW,
        ),
        (adding(filled=True), {"exact": False, "settled": True}, Action.FAIL, Action.FOLLOW),
        # Its rows from the cut-line on are not in the lake: it does not matter what became of them.
        (
            {**SHAPE, "leaves": [leaf(20001, file=3)]},
            {"filled": frozenset({20001})},
            Action.FOLLOW,
            Action.FOLLOW,
        ),
        ({**SHAPE, "identity": {**IDENTITY, "key": []}}, {}, Action.FAIL, Action.FAIL),
        ({**SHAPE, "identity": {**IDENTITY, "setting": "n"}}, {}, Action.FOLLOW, Action.FOLLOW),
    ],
)
def test_a_tiered_table_is_never_copied_again(
    shape: dict[str, Any], note: dict[str, Any], below: Action, unmoved: Action
) -> None:
    """What concerns rows below the cut-line decides, and without such rows nothing does."""
    decision = decided(shape, TIERED, **note)
    assert decision.action is below, decision.reason
    decision = decided(shape, replace(TIERED, tier=Tier("id", TierKind.BIGINT, lag=5)), **note)
    assert decision.action is unmoved, decision.reason
