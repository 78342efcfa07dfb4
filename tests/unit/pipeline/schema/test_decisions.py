"""What can be proven about a changed table, and what cannot: one fact at a time, without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from decoders.columns import ColumnType
from mirror_pump.model import (
    Lsn,
    MirroredTable,
    TableId,
    TableMode,
    TableState,
    Tier,
    TierKind,
)
from mirror_pump.pipeline.schema.decisions import Action, SchemaChangeDecision, decide
from mirror_pump.source.relations.change_notes import Note, describe_shape
from tests.support.table_values import live_table

_TYPES = {
    (20, -1): ("bigint", "long"),
    (23, -1): ("integer", "int"),
    (25, -1): ("text", "string"),
    (26, -1): ("oid", "long"),
    (1043, 24): ("character varying(20)", "string"),
    (1700, 655366): ("numeric(10,2)", "decimal(10,2)"),
    (1700, 917510): ("numeric(14,2)", "decimal(14,2)"),
    (650, -1): ("cidr", "string"),
    (869, -1): ("inet", "string"),
}
_RESOLVED = {key: ColumnType.parse(kind) for key, (_, kind) in _TYPES.items()}


def _column(attnum: int, name: str, type_: tuple[int, int], **facts: bool) -> dict[str, Any]:
    flags = {"not_null": name == "id", "generated": False, "filled": False} | facts
    return {"attnum": attnum, "name": name, "type": type_[0], "modifier": type_[1], "sql": _TYPES[type_][0], **flags}


_IDENTITY = {"setting": "d", "immediate": True, "index": 99, "key": ["id"]}


def _leaf(number: int, file: int | None = None) -> dict[str, Any]:
    return {
        "id": number, "schema": "public", "name": f"t{number}", "kind": "r", "persistence": "p", "identity": _IDENTITY,
        "row_security": False, "readable": True, "file": file,
    }  # fmt: skip


SHAPE: dict[str, Any] = {
    "schema": "public", "name": "t", "kind": "r", "persistence": "p", "partition_of": None, "inherits": False,
    "owned": True, "row_security": False, "identity": _IDENTITY, "leaves": [_leaf(20000)], "types": {},
    "columns": [
        _column(1, "id", (23, -1)), _column(3, "v", (1043, 24)), _column(4, "n", (1700, 655366)),
        _column(5, "net", (650, -1)), _column(6, "g", (23, -1), generated=True),
    ],
}  # fmt: skip
TABLE = live_table(
    describe_shape(SHAPE, TableId(20000), _RESOLVED).columns,
    number=20000,
    start_lsn=Lsn(5),
    next_field_id=9,
    shape=json.dumps(SHAPE),
)
TABLE = replace(
    TABLE, columns=tuple(replace(column, field_id=place) for place, column in enumerate(TABLE.columns, start=1))
)


def _decided(shape: dict[str, Any], table: MirroredTable = TABLE, **note: Any) -> SchemaChangeDecision:
    told = Note(table.table_id, **{"exact": True, **note}, shape=shape)
    return decide(table, told, describe_shape(shape, table.table_id, _RESOLVED))


def _with(place: int, **changed: Any) -> dict[str, Any]:
    columns = list(SHAPE["columns"])
    columns[place] = {**columns[place], **changed}
    return {**SHAPE, "columns": columns}


def _adding(**facts: Any) -> dict[str, Any]:
    return {**SHAPE, "columns": [*SHAPE["columns"], _column(7, "z", (25, -1), **facts)]}


def test_the_same_shape_is_nothing() -> None:
    assert _decided(SHAPE).action is Action.NOTHING
    assert _decided(SHAPE, exact=False).action is Action.NOTHING


def test_a_renamed_column_keeps_its_field_id_and_a_new_one_gets_the_next() -> None:
    decision = _decided({**SHAPE, "columns": [_column(1, "key", (23, -1), not_null=True), *_adding()["columns"][2:]],
                       "identity": {**_IDENTITY, "key": ["key"]}})  # fmt: skip
    assert decision.action is Action.FOLLOW
    assert [(column.name, column.field_id) for column in decision.table.columns] == [
        ("key", 1),
        ("n", 3),
        ("net", 4),
        ("z", 9),
    ]
    assert (decision.table.key, decision.table.next_field_id) == (("key",), 10)
    # A dropped column does not pass on its ID to a later column with its name.
    present = json.loads(decision.table.shape)
    again = _decided({**present, "columns": [*present["columns"], _column(8, "v", (25, -1))]}, decision.table)
    assert [(column.name, column.field_id) for column in again.table.columns][-1] == ("v", 10)


@pytest.mark.parametrize(
    ("shape", "note", "action"),
    [
        (_adding(), {}, Action.FOLLOW),
        (_adding(filled=True), {}, Action.COPY_AGAIN),
        (_adding(), {"rewritten": 2}, Action.COPY_AGAIN),
        (_adding(), {"exact": False}, Action.COPY_AGAIN),
        (_adding(generated=True), {"rewritten": 2}, Action.FOLLOW),
        (_with(4, generated=False), {}, Action.COPY_AGAIN),
        (_with(1, type=25, modifier=-1, sql="text"), {}, Action.FOLLOW),
        (_with(1, type=25, modifier=-1, sql="text"), {"rewritten": 4}, Action.COPY_AGAIN),
        (_with(1, type=25, modifier=-1, sql="text"), {"exact": False}, Action.COPY_AGAIN),
        (_with(2, modifier=917510, sql="numeric(14,2)"), {}, Action.FOLLOW),
        (_with(2, modifier=917510, sql="numeric(14,2)"), {"rewritten": 4}, Action.COPY_AGAIN),
        (_with(3, type=869, sql="inet"), {}, Action.COPY_AGAIN),
        (_with(0, type=26, sql="oid"), {}, Action.COPY_AGAIN),
        (_with(0, type=20, sql="bigint"), {"rewritten": 4}, Action.COPY_AGAIN),
        (SHAPE, {"rewritten": 4}, Action.COPY_AGAIN),
        (SHAPE, {"rewritten": 8}, Action.NOTHING),
        ({**SHAPE, "name": "u"}, {}, Action.FOLLOW),
        ({**SHAPE, "name": "u"}, {"exact": False}, Action.FOLLOW),
        ({**SHAPE, "leaves": [_leaf(20000), _leaf(20001)]}, {}, Action.FOLLOW),
        ({**SHAPE, "leaves": [_leaf(20000), _leaf(20001)]}, {"filled": frozenset({20001})}, Action.COPY_AGAIN),
        ({**SHAPE, "leaves": [_leaf(20000), _leaf(20001)]}, {"exact": False}, Action.COPY_AGAIN),
        ({**SHAPE, "leaves": []}, {}, Action.COPY_AGAIN),
        (SHAPE, {"stayed": frozenset({20000})}, Action.NOTHING),
        (SHAPE, {"stayed": frozenset()}, Action.COPY_AGAIN),
        (_adding(), {"filled_columns": frozenset({7})}, Action.COPY_AGAIN),
        ({**SHAPE, "inherits": True}, {}, Action.FAIL),
        ({**SHAPE, "persistence": "u"}, {}, Action.FAIL),
        ({**SHAPE, "identity": {**_IDENTITY, "key": []}}, {}, Action.WAIT),
        ({**SHAPE, "identity": {**_IDENTITY, "setting": "n"}}, {}, Action.WAIT),
        ({**SHAPE, "identity": {**_IDENTITY, "immediate": False}}, {}, Action.WAIT),
        ({**SHAPE, "identity": {**_IDENTITY, "setting": "f"}}, {}, Action.FOLLOW),
    ],
)
def test_the_action(shape: dict[str, Any], note: dict[str, Any], action: Action) -> None:
    assert _decided(shape, **note).action is action


def test_values_of_a_generated_column_are_copied_again_if_a_rewrite_may_have_recomputed_them() -> None:
    computed = _with(1, computed=True)
    table = replace(TABLE, shape=json.dumps(computed))
    assert _decided(computed, table, rewritten=8).action is Action.NOTHING
    assert _decided(computed, table, rewritten=2).action is Action.COPY_AGAIN
    assert _decided(_with(1, computed=True, name="w"), table, rewritten=2).action is Action.COPY_AGAIN
    # DROP EXPRESSION keeps the existing values; together with SET EXPRESSION they may be others.
    assert _decided(_with(1, computed=False), table).action is Action.FOLLOW
    assert _decided(_with(1, computed=False), table, rewritten=2).action is Action.COPY_AGAIN
    # A column that is not mirrored has no values in the lake.
    left_out = _with(4, computed=True)
    assert _decided(left_out, replace(TABLE, shape=json.dumps(left_out)), rewritten=2).action is Action.NOTHING


def test_another_key_is_copied_again_under_it() -> None:
    shape = _with(2, not_null=True) | {"identity": {**_IDENTITY, "key": ["n"]}}
    decision = _decided(shape)
    assert (decision.action, decision.table.key) == (Action.COPY_AGAIN, ("n",))


def test_a_type_that_does_not_widen_gets_a_new_field_id() -> None:
    decision = _decided(_with(2, type=25, modifier=-1, sql="text"), rewritten=4)
    assert decision.action is Action.COPY_AGAIN
    assert [(column.name, column.field_id) for column in decision.table.columns][2] == ("n", 9)
    widened = _decided(_with(0, type=20, sql="bigint"), rewritten=4)
    assert widened.table.columns[0].field_id == 1


def test_without_a_trigger_a_new_file_means_that_values_may_be_others() -> None:
    before = {**SHAPE, "leaves": [_leaf(20000, 1)]}
    table = replace(TABLE, shape=json.dumps(before))
    after = {**SHAPE, "leaves": [_leaf(20000, 2)]}
    assert _decided(after, table, exact=False).action is Action.COPY_AGAIN
    # Once triggers report why heaps are rewritten, shapes have no files; that alone changes nothing.
    assert _decided(SHAPE, table, exact=False).action is Action.FOLLOW
    assert _decided(SHAPE, table, filled=frozenset({20000})).action is Action.COPY_AGAIN, "it was another by then"
    # If no file was recorded before, it may have been another one until recently.
    assert _decided(after, exact=False).action is Action.COPY_AGAIN
    assert _decided(after).action is Action.COPY_AGAIN


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
    former, present = (_with(2, altered=altered, filled=filled) for altered, filled in (before, after))
    table = replace(TABLE, shape=json.dumps(former))
    assert _decided(present, table, **{"exact": False, **note}).action is action


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
    assert _decided({**SHAPE, "types": after}, table, settled=True).action is action
    waits = Action.WAIT if action is Action.COPY_AGAIN else action
    assert _decided({**SHAPE, "types": after}, table).action is waits, "what was written before is to come"


def test_a_dropped_table_is_no_failed_one() -> None:
    decision = decide(TABLE, Note(TABLE.table_id, exact=True, gone=True), None)
    assert decision.action is Action.DROPPED
    assert "readable as of its last frontier" in decision.reason


def test_an_unexplained_rewrite_has_to_wait() -> None:
    assert decide(TABLE, Note(TABLE.table_id, rewritten=4), None).action is Action.WAIT


def test_with_heap_retention_a_partition_that_goes_takes_no_rows_along() -> None:
    table = replace(TABLE, tier=Tier("id", TierKind.BIGINT))
    renamed = {**SHAPE, "leaves": [], "columns": [{**SHAPE["columns"][0], "name": "at"}, *SHAPE["columns"][1:]]}
    renamed["identity"] = {**_IDENTITY, "key": ["at"]}
    decision = decide(
        table, Note(TABLE.table_id, exact=True, shape=renamed), describe_shape(renamed, TABLE.table_id, _RESOLVED)
    )
    assert decision.action is Action.FOLLOW
    assert decision.table.tier == Tier("at", TierKind.BIGINT), "the tier key under its new name"


WITH_RETENTION = replace(TABLE, tier=Tier("id", TierKind.BIGINT, cut=10, lag=5))
"""Rows below 10 are in the lake only."""


@pytest.mark.parametrize(
    ("shape", "note", "action"),
    [
        (_adding(), {}, Action.FOLLOW),
        (_adding(filled=True), {}, Action.FAIL),
        (_adding(), {"rewritten": 2}, Action.FAIL),
        # A heap that was rewritten may have been filled, if no event trigger reports the reason.
        (_adding(), {"exact": False}, Action.COPY_AGAIN),
        ({**_adding(), "leaves": [_leaf(20000, file=8)]}, {"exact": False}, Action.FAIL),
        (_with(4, generated=False), {}, Action.FAIL),
        # Like USING, a new expression has no effect on rows that the heap does not hold.
        (_with(1, computed=True), {"rewritten": 2}, Action.COPY_AGAIN),
        (_with(1, type=23, modifier=-1, sql="integer"), {"rewritten": 4}, Action.FAIL),
        (_with(2, modifier=917510, sql="numeric(14,2)"), {"rewritten": 4}, Action.COPY_AGAIN),
        (_with(0, type=20, modifier=-1, sql="bigint"), {"rewritten": 4}, Action.FAIL),
        (_with(2, not_null=True) | {"identity": {**_IDENTITY, "key": ["id", "n"]}}, {}, Action.FAIL),
        ({**SHAPE, "leaves": []}, {}, Action.FOLLOW),
        (SHAPE, {"stayed": frozenset(), "filled": frozenset({20000})}, Action.COPY_AGAIN),
        ({**SHAPE, "leaves": [_leaf(20000), _leaf(20001)]}, {"filled": frozenset({20001})}, Action.COPY_AGAIN),
    ],
)
def test_what_old_rows_cannot_follow_fails_a_table_with_a_cutline(
    shape: dict[str, Any], note: dict[str, Any], action: Action
) -> None:
    table = WITH_RETENTION
    if note.get("exact") is False:
        table = replace(table, shape=json.dumps({**SHAPE, "leaves": [_leaf(20000, file=7)]}))
        shape = {**shape, "leaves": [_leaf(20000, file=7)]} if shape["leaves"] == SHAPE["leaves"] else shape
    decision = _decided(shape, table, **note)
    assert decision.action is action, decision.reason
    # Before the cut-line has moved, every row is in the heap, and can be read again.
    unmoved = replace(table, tier=Tier("id", TierKind.BIGINT, lag=5))
    assert _decided(shape, unmoved, **note).action is (Action.COPY_AGAIN if action is Action.FAIL else action)


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
    decision = _decided(_adding(filled=True), replace(WITH_RETENTION, state=state), **note)
    assert decision.action is action, decision.reason
    if action is not Action.FAIL:
        assert decision.table.columns[-1].initial == initial
        # A later copy of the rows above the cut-line keeps files below the cut-line, which may not be filled yet.
        again = _decided(_adding(filled=True), decision.table, filled=frozenset({20000}), stayed=frozenset())
        assert (again.action, again.table.columns[-1].initial) == (Action.COPY_AGAIN, initial)


TIERED = replace(WITH_RETENTION, mode=TableMode.TIERED)


@pytest.mark.parametrize(
    ("shape", "note", "below", "unmoved"),
    [
        (_adding(), {"exact": False, "settled": True}, Action.FOLLOW, Action.FOLLOW),
        (_adding(filled=True), {"exact": False, "settled": True, "missing": {7: "x"}}, Action.FILL, Action.FOLLOW),
        (_adding(filled=True), {"exact": False, "settled": True}, Action.FAIL, Action.FOLLOW),
        # Its rows from the cut-line on are not in the lake: it does not matter what became of them.
        ({**SHAPE, "leaves": [_leaf(20001, file=3)]}, {"filled": frozenset({20001})}, Action.FOLLOW, Action.FOLLOW),
        ({**SHAPE, "identity": {**_IDENTITY, "key": []}}, {}, Action.FAIL, Action.FAIL),
        ({**SHAPE, "identity": {**_IDENTITY, "setting": "n"}}, {}, Action.FOLLOW, Action.FOLLOW),
    ],
)
def test_a_tiered_table_is_never_copied_again(
    shape: dict[str, Any], note: dict[str, Any], below: Action, unmoved: Action
) -> None:
    """What concerns rows below the cut-line decides, and without such rows nothing does."""
    decision = _decided(shape, TIERED, **note)
    assert decision.action is below, decision.reason
    decision = _decided(shape, replace(TIERED, tier=Tier("id", TierKind.BIGINT, lag=5)), **note)
    assert decision.action is unmoved, decision.reason
