"""Each row of docs/schema-changes.md is a case: what event triggers report about it, the rule that decides, the result.

Of several transactions, a case is the one with the strongest result. Columns stand for those of the document: `v` for
any column, `z` for any new one. That triggers report this is the matter of
`tests/integration/schema/test_schema_changes.py`, which executes the rows.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from mirror_pump.model import LakePartitioning, TableId, TableState
from mirror_pump.pipeline.schema.column_rules import CHANGED_COLUMN_RULES, NEW_COLUMN_RULES, Rule, first_rule
from mirror_pump.pipeline.schema.decisions import COPY_RULES, DECISION_RULES, Action, decide
from mirror_pump.pipeline.schema.schema_change import SchemaChange
from mirror_pump.source.relations.change_notes import REWRITTEN_WIDENED, Note, describe_shape
from tests.support.documented_changes import DocumentedChange, documented_changes
from tests.unit.pipeline.schema.shapes import (
    IDENTITY,
    RESOLVED,
    SHAPE,
    TABLE,
    adding,
    column_shape,
    leaf,
    with_column,
)
from tests.unit.pipeline.schema.test_decisions import WITH_RETENTION

_RESULTS = {
    Action.NOTHING: "nothing",
    Action.FOLLOW: "followed",
    Action.FILL: "filled",
    Action.COPY_AGAIN: "copied again",
    Action.WAIT: "waits",
    Action.FAIL: "failed",
    Action.DROPPED: "dropped",
}

FILLED = "one value in all existing rows"
IN_SCHEMA = "one value in all existing rows, and it is in the schema"
NULL = "NULL in all existing rows"
OTHER = "other values in existing rows"
SAME = "the same type"
READS_ON = "a type that old values read on as"
WIDER = "a wider type, and values may be others"
ANOTHER = "another type"
REWRITTEN = "its rows were rewritten"
KEY = "its key changed"
GONE = "a partition is gone"
CAME = "a partition came with rows"
PRINTS = "one of its types prints values differently now"
REFUSED = "it cannot be mirrored"
KEYLESS = "no key"
REMOVED = "new values or removed rows"
RIGHT = "rows are right"
UNCHANGED = "nothing changed"

DocumentedCase = tuple[dict[str, Any], dict[str, Any], str]
"""The shape after the change, what else the note says, and the rule that decides."""
_Z: dict[str, Any] = adding(filled=True)
_SEVEN: dict[str, Any] = {"missing": {7: "7"}}
_NULL: dict[str, Any] = {"missing": {7: None}}
_USING = {"rewritten": 4}
_CAST = {"rewritten": REWRITTEN_WIDENED}


def _type(number: tuple[int, int], sql: str, place: int = 1, **facts: Any) -> dict[str, Any]:
    return with_column(place, type=number[0], modifier=number[1], sql=sql, **facts)


def _without(*places: int) -> dict[str, Any]:
    return {**SHAPE, "columns": [column for place, column in enumerate(SHAPE["columns"]) if place not in places]}


def _identity(**facts: Any) -> dict[str, Any]:
    return with_column(2, not_null=True) | {"identity": {**IDENTITY, **facts}}


def _types(**texts: str) -> dict[str, Any]:
    return {**SHAPE, "types": {"1": texts}}


COLUMNS: dict[str, DocumentedCase] = {
    "add a column": (adding(), {}, NULL),
    "add one with a constant default": (_Z, _SEVEN, FILLED),
    "add one with a default that is worked out once": (_Z, {"missing": {7: "2026-01-01"}}, FILLED),
    "add several": ({**_Z, "columns": [*_Z["columns"], column_shape(8, "x", (1700, 655366))]}, _SEVEN, FILLED),
    "add them one after the other": (_Z, _SEVEN, FILLED),
    "add one, and write to it in the same transaction": (_Z, _SEVEN, FILLED),
    "write, then add one in the same transaction": (_Z, _SEVEN, FILLED),
    "add one, and give it another default": (_Z, _SEVEN, FILLED),
    "add one, rename it and drop another": ({**_Z, "columns": [_Z["columns"][0], *_Z["columns"][2:]]}, _SEVEN, FILLED),
    "add one, and drop it": (_Z, _SEVEN, FILLED),
    "add one, and rewrite the heap": (_Z, _SEVEN, FILLED),
    "add one, and TRUNCATE": (_Z, _SEVEN, FILLED),
    "add one, and another with a volatile default": (
        {**_Z, "columns": [*_Z["columns"], column_shape(8, "y", (20, -1), filled=True)]},
        {**_SEVEN, "rewritten": 2},
        OTHER,
    ),
    "add one whose values print by the session": (_Z, {}, OTHER),
    "add one with a volatile default": (_Z, {"rewritten": 2}, OTHER),
    "add one that is NOT NULL": (adding(filled=True, not_null=True), {"missing": {7: ""}}, FILLED),
    "add one of a domain that has a default and a constraint": (_Z, {"rewritten": 2}, OTHER),
    "add an identity column": (adding(filled=True, not_null=True), {"rewritten": 2}, OTHER),
    "add one, give it a default later": (adding(), _NULL, NULL),
    "both in one transaction": (_Z, _NULL, NULL),
    "add one with a default that is dropped at once": (adding(), _SEVEN, FILLED),
    "the same, and the heap is rewritten": (adding(), _SEVEN, FILLED),
    "add a stored generated column": (adding(computed=True), {"rewritten": 2}, OTHER),
    "add a virtual one": (adding(generated=True), {}, RIGHT),
    "make a stored generated column an ordinary one": (with_column(1, computed=False), {}, SAME),
    "another expression for a stored generated column": (with_column(1, computed=True), {"rewritten": 2}, REWRITTEN),
    "the same in one transaction with another change": (
        with_column(1, computed=True, name="triple"),
        {"rewritten": 2},
        REWRITTEN,
    ),
    "the same, and an ordinary one of it": (with_column(1, computed=False), {"rewritten": 2}, REWRITTEN),
    "another type for a stored generated column": (_type((20, -1), "bigint", computed=True), _USING, ANOTHER),
    "drop a stored generated column": (_without(1), {}, RIGHT),
    "drop a column": (_without(1), {}, RIGHT),
    "drop a column by dropping its type": (_without(3), {}, RIGHT),
    "rename a column": (with_column(1, name="renamed"), {}, SAME),
    "add a column whose name differs from another's in case only": (
        {**SHAPE, "columns": [*SHAPE["columns"], column_shape(7, "V", (25, -1))]},
        {},
        REFUSED,
    ),
    "rename a key column": (with_column(0, name="code") | {"identity": {**IDENTITY, "key": ["code"]}}, {}, SAME),
    "swap two names": (
        {**SHAPE, "columns": [SHAPE["columns"][0], with_column(1, name="n")["columns"][1],
                              with_column(2, name="v")["columns"][2], *SHAPE["columns"][3:]]},
        {},
        SAME,
    ),
    "drop and add the same name": (
        {**_without(1), "columns": [*_without(1)["columns"], column_shape(7, "v", (1043, 24))]}, {}, NULL,
    ),
    "drop and add the same name with another type": (
        {**_without(1), "columns": [*_without(1)["columns"], column_shape(7, "v", (20, -1))]}, {}, NULL,
    ),
    "longer varchar, varchar to text": (_type((25, -1), "text"), {}, READS_ON),
    "more digits": (_type((1700, 917510), "numeric(14,2)", 2), {}, READS_ON),
    "numeric without limits": (_type((1700, -1), "numeric", 2), {}, ANOTHER),
    "more decimal places": (_type((1700, -1), "numeric", 2), _USING, ANOTHER),
    "int to bigint, nothing generated from it": (_type((20, -1), "bigint", 5), _CAST, READS_ON),
    "the same, as many frameworks write it": (_type((20, -1), "bigint", 5), _CAST, READS_ON),
    "the same, with other statements": (_type((20, -1), "bigint", 5, name="number"), _CAST, READS_ON),
    "the same, in a function": (_type((20, -1), "bigint", 5), _USING, WIDER),
    "smallint to int to bigint, and real to double precision": (_type((20, -1), "bigint", 5), _CAST, READS_ON),
    "int to bigint with USING": (_type((20, -1), "bigint", 5), _USING, WIDER),
    "int to bigint, and a column whose length shrinks": (_type((20, -1), "bigint", 5), _USING, WIDER),
    "int to bigint by way of oid, which has no negative numbers": (_type((20, -1), "bigint", 5), _USING, WIDER),
    "int to bigint by way of real, which rounds": (
        _type((20, -1), "bigint", 5), {"rewritten": REWRITTEN_WIDENED | 4}, WIDER,
    ),
    "the key from int to bigint": (_type((20, -1), "bigint", 0), _USING, ANOTHER),
    "int to oid, which prints negative numbers differently": (_type((26, -1), "oid", 0), {}, ANOTHER),
    "narrower with USING": (_type((23, -1), "integer"), _USING, ANOTHER),
    "the same type with USING": (SHAPE, _USING, REWRITTEN),
    "text to a number": (_type((23, -1), "integer"), _USING, ANOTHER),
    "timestamptz to timestamp": (_type((23, -1), "integer"), _USING, ANOTHER),
    "SET NOT NULL, DROP NOT NULL, SET DEFAULT": (with_column(1, not_null=True), {}, SAME),
    "add an enum label": (_types(**{"7": "ok", "8": "new"}), {}, RIGHT),
    "rename an enum label": (_types(**{"7": "fine"}), {"settled": True}, PRINTS),
    "rename one, write and rename it back in one transaction": (
        _types(**{"7": "ok"}), {"settled": True, "types": ({"1": {"7": "fine"}},)}, PRINTS,
    ),
    "add an attribute to a composite type": ({**SHAPE, "types": {"2": {"1": 23, "2": 23}}}, {"settled": True}, PRINTS),
    "the same with a table's row type, and back": (
        {**SHAPE, "types": {"2": {"1": 23}}}, {"settled": True, "types": ({"2": {"1": 23, "2": 23}},)}, PRINTS,
    ),
    "the same in several transactions": ({**SHAPE, "types": {"2": {"1": 23, "2": 23}}}, {"settled": True}, PRINTS),
}  # fmt: skip

KEYS: dict[str, DocumentedCase] = {
    "drop the primary key": (_identity(key=[]), {}, KEYLESS),
    "drop and re-create the primary key in one transaction": (_identity(index=100), {}, SAME),
    "drop and re-create the primary key in two transactions": (
        _identity(index=100),
        {"settled": True, "filled": frozenset({20000})},
        CAME,
    ),
    "another primary key": (_identity(key=["n"]), {}, KEY),
    "a longer primary key": (_identity(key=["id", "n"]), {}, KEY),
    "REPLICA IDENTITY FULL, and back": (
        _identity(setting="f") | {"leaves": [leaf(20000) | {"identity": {**IDENTITY, "setting": "f"}}]}, {}, SAME,
    ),
    "REPLICA IDENTITY USING INDEX on other columns": (_identity(setting="i", key=["n"]), {}, KEY),
    "REPLICA IDENTITY NOTHING for a while": (SHAPE, {"settled": True, "filled": frozenset({20000})}, CAME),
}  # fmt: skip

TABLES: dict[str, DocumentedCase] = {
    "rename": ({**SHAPE, "name": "renamed"}, {}, RIGHT),
    "move to another schema": ({**SHAPE, "schema": "elsewhere"}, {}, RIGHT),
    "swap names with a table that is not mirrored": ({**SHAPE, "name": "spare"}, {}, RIGHT),
    "drop": (SHAPE, {"gone": True}, "dropped"),
    "drop and create again under the same name": (SHAPE, {"gone": True}, "dropped"),
    "make it a partition": ({**SHAPE, "partition_of": ["public", "root"]}, {}, REFUSED),
    "inherit": ({**SHAPE, "inherits": True}, {}, REFUSED),
    "VACUUM FULL, CLUSTER": (SHAPE, {}, UNCHANGED),
}


def _part(number: int) -> dict[str, Any]:
    datum = " ".join(str(byte) for byte in struct.pack("<q", number))
    return leaf(20000 + number) | {
        "bound": "{PARTITIONBOUNDSPEC :strategy l :is_default false :modulus 0 :remainder 0 :listdatums"
        f" ({{CONST :consttype 23 :constlen 4 :constisnull false :location -1 :constvalue 4 [ {datum} ]}})"
        " :lowerdatums <> :upperdatums <> :location -1}"
    }


def _parts(*numbers: int, **changed: Any) -> dict[str, Any]:
    return {**SHAPE, "partition_key": [1], "leaves": [_part(number) for number in numbers], **changed}


_P = _parts(1, 2, 9)
_FULL = {**IDENTITY, "setting": "f"}


def _full(*numbers: int, leaves: dict[str, Any]) -> dict[str, Any]:
    return _parts(identity=_FULL, leaves=[_part(number) | {"identity": leaves} for number in numbers])


def _filled(*numbers: int) -> dict[str, Any]:
    return {"filled": frozenset(20000 + number for number in numbers)}


def _stayed(*numbers: int) -> dict[str, Any]:
    return {"stayed": frozenset(20000 + number for number in numbers)}


_PZ = {**_P, "columns": _Z["columns"]}
PARTITIONS: dict[str, DocumentedCase] = {
    "create a partition": (_parts(1, 2, 3, 9), {}, RIGHT),
    "attach an empty table": (_parts(1, 2, 4, 9), {}, RIGHT),
    "attach a table with rows": (_parts(1, 2, 4, 9), _filled(4), CAME),
    "attach a table with rows, then change the table once more": (_parts(1, 2, 3, 4, 9), _filled(4), CAME),
    "detach": (_parts(2, 9), {}, REMOVED),
    "detach, change and attach in one transaction": (_P, _stayed(2, 9) | _filled(1), GONE),
    "the same with TRUNCATE": (_P, _stayed(2, 9), GONE),
    "drop": (_parts(2, 9), {}, REMOVED),
    "drop, and create it again with the same keys": (_parts(2, 9, 11), {}, REMOVED),
    "move rows out of it, and drop": (_parts(2, 9), {}, REMOVED),
    "drop several, and add a column with a default": (_parts(2), {}, REMOVED),
    "detach, and insert its rows into another": (_parts(2, 9, 5), {}, REMOVED),
    "drop the DEFAULT partition": (_parts(1, 2, 9), {}, GONE),
    "create one under REPLICA IDENTITY FULL, in one transaction": (_full(1, 2, 3, 9, leaves=_FULL), {}, RIGHT),
    "a partition with another replica identity than its table": (_full(1, 2, 9, leaves=IDENTITY), {}, REFUSED),
    "DISABLE and ENABLE TRIGGER USER of a partition": (_P, {}, UNCHANGED),
    "add a column": (_parts(1, 2, 9, columns=adding()["columns"]), {}, NULL),
    "add one with a default that is dropped at once": (_parts(1, 2, 9, columns=adding()["columns"]), _SEVEN, FILLED),
    "add one with a constant default, and a partition": (_PZ, _SEVEN, FILLED),
    "the same in one transaction": (_parts(1, 2, 3, 9, columns=_Z["columns"]), _SEVEN, FILLED),
    "add one of a domain that has a default": (_PZ, _SEVEN, FILLED),
    "create one as UNLOGGED, fill it and make it logged": (_parts(1, 2, 3, 9), _filled(3), CAME),
    "SET UNLOGGED, change and SET LOGGED in one transaction": (_P, _stayed(2, 9) | _filled(1), CAME),
    "rename a partition": (_parts(1, 2, 9, leaves=[_part(1) | {"name": "first"}, _part(2), _part(9)]), {}, RIGHT),
}  # fmt: skip

SECTIONS = {"Columns": COLUMNS, "Keys and identity": KEYS, "The table": TABLES, "Partitions": PARTITIONS}
_FORMER: dict[str, dict[str, Any]] = {
    "another expression for a stored generated column": with_column(1, computed=True),
    "the same in one transaction with another change": with_column(1, computed=True),
    "the same, and an ordinary one of it": with_column(1, computed=True),
    "make a stored generated column an ordinary one": with_column(1, computed=True),
    "another type for a stored generated column": with_column(1, computed=True),
    "drop the DEFAULT partition": _parts(
        1, 2, 9, 5, leaves=[*_P["leaves"], _part(5) | {"bound": "{PARTITIONBOUNDSPEC :strategy l :is_default true}"}]
    ),
} | {
    name: {**SHAPE, "types": {"1": {"7": "ok"}, "2": {"1": 23}}}
    for name, case in COLUMNS.items()
    if case[0].get("types")
}
"""The shape before, where it is not SHAPE, or in the section Partitions _P."""
_NO_DECISION = {
    "int to bigint": "PostgreSQL refuses it",
    "TRUNCATE": "a message of the stream",
    "TRUNCATE the whole table": "a message of the stream",
    "TRUNCATE one partition": "the assembler",
    "TRUNCATE a partition that was created later": "the assembler",
    "TRUNCATE a partition that was created with its schema": "the assembler",
    "the same, and TRUNCATE meanwhile": "the assembler",
    "all that in one transaction": "the assembler",
}
"""The rows about which nothing is decided here, and where instead."""


def _documented() -> list[DocumentedChange]:
    return [change for change in documented_changes() if change.section in SECTIONS]


def _change(
    shape: dict[str, Any], note: dict[str, Any], former: dict[str, Any], table: Any = TABLE, *, defaults: bool = False
) -> SchemaChange:
    """`defaults`: the policy wants them in the metadata."""
    table = replace(table, shape=json.dumps(former))
    told = Note(table.table_id, **{"exact": True, **note}, shape=shape)
    described = describe_shape(shape, TableId(20000), RESOLVED)
    return SchemaChange(table, told, described, defaults_in_metadata=defaults)


def _applying(change: SchemaChange) -> set[str]:
    """The names of the rules that apply."""
    decision = first_rule(DECISION_RULES, change).name
    names = {decision}
    if decision not in ("dropped", REFUSED, KEYLESS):
        names |= {rule.name for rule in COPY_RULES if rule.applies(change)}
        names |= {column.rule.name for column in change.column_changes}
    return names


def test_every_row_is_a_case() -> None:
    rows = [(row.section, row.change) for row in _documented() if row.change not in _NO_DECISION]
    assert sorted(rows) == sorted((section, change) for section, cases in SECTIONS.items() for change in cases)
    assert {row.change for row in _documented()} >= set(_NO_DECISION)


@pytest.mark.parametrize(
    ("section", "change", "result"),
    [(row.section, row.change, row.result) for row in _documented() if row.change not in _NO_DECISION],
    ids=str,
)
def test_a_row_is_decided_by_its_rule(section: str, change: str, result: str) -> None:
    shape, note, rule = SECTIONS[section][change]
    facts = _change(shape, note, _FORMER.get(change, _P if section == "Partitions" else SHAPE))
    decision = decide(facts.table, facts.note, describe_shape(shape, TableId(20000), RESOLVED))
    assert _RESULTS[decision.action] == result, decision.reason
    assert rule in _applying(facts)


def _heap(file: int) -> dict[str, Any]:
    return {**SHAPE, "leaves": [leaf(20000, file)]}


_NUMBER = {**SHAPE, "columns": [*SHAPE["columns"], column_shape(7, "z", (1700, 655366), filled=True)]}
_LABEL = _types(**{"7": "fine"})
_MORE: list[tuple[str, SchemaChange, Action]] = [
    # "Without event triggers"
    (
        "its heap may have been rewritten, and no trigger reported it",
        _change(_heap(2), {"exact": False}, _heap(1)),
        Action.COPY_AGAIN,
    ),
    (
        "a partition was detached for a moment, and it is unknown when",
        _change(_P | {"attached": {"20001": "9"}}, {"exact": False}, _P | {"attached": {"20001": "8"}}),
        Action.COPY_AGAIN,
    ),
    ("no proof of its values", _change(adding(), {"exact": False}, SHAPE), Action.COPY_AGAIN),
    ("a partition was truncated", _change(_P, {"truncated": True}, _P), Action.COPY_AGAIN),
    # After a TRUNCATE of a partition, nothing else is said.
    ("a partition was truncated", _change(_parts(2, 9), {"truncated": True}, _P), Action.COPY_AGAIN),
    # "What it costs": a table that is being copied is not filled, nor with a value that Iceberg's type cannot hold.
    (OTHER, _change(_Z, _SEVEN, SHAPE, replace(TABLE, state=TableState.COPYING)), Action.COPY_AGAIN),
    (OTHER, _change(_NUMBER, {"missing": {7: "NaN"}}, SHAPE), Action.COPY_AGAIN),
    (FILLED, _change(_NUMBER, _SEVEN, SHAPE), Action.FILL),
    # "Defaults in metadata": in format version 3, of a value that Iceberg has, and not with a cut-line.
    (IN_SCHEMA, _change(_Z, _SEVEN, SHAPE, replace(TABLE, format_version=3), defaults=True), Action.FOLLOW),
    (FILLED, _change(_Z, _SEVEN, SHAPE, replace(TABLE, format_version=3)), Action.FILL),
    (FILLED, _change(_Z, _SEVEN, SHAPE, TABLE, defaults=True), Action.FILL),
    (FILLED, _change(_Z, _SEVEN, SHAPE, replace(WITH_RETENTION, format_version=3), defaults=True), Action.FILL),
    # "With heap retention"
    ("NULL, and more happened to the heap", _change(_Z, _NULL | _USING, SHAPE, WITH_RETENTION), Action.COPY_AGAIN),
    (FILLED, _change(_Z, _SEVEN, SHAPE, replace(WITH_RETENTION, state=TableState.COPYING)), Action.FILL),
    ("old rows may be wrong", _change(_Z, {}, SHAPE, WITH_RETENTION), Action.FAIL),
    (WIDER, _change(_type((1700, 917510), "numeric(14,2)", 2), _USING, SHAPE, WITH_RETENTION), Action.COPY_AGAIN),
    (RIGHT, _change(_parts(leaves=[_part(1) | {"id": 7}, _part(2)]), {}, _P, WITH_RETENTION), Action.FOLLOW),
    (RIGHT, _change(_parts(2, 5), {}, _P, WITH_RETENTION), Action.FOLLOW),
    (ANOTHER, _change(_type((20, -1), "bigint", 0), _USING, SHAPE, WITH_RETENTION), Action.FAIL),
    (READS_ON, _change(_type((20, -1), "bigint", 5), _CAST, SHAPE, WITH_RETENTION), Action.FOLLOW),
    # "What it costs": a wider key, a new column in the same transaction, a widening that nobody reported.
    (ANOTHER, _change(_type((20, -1), "bigint", 0), _CAST, SHAPE), Action.COPY_AGAIN),
    (OTHER, _change(_Z, _CAST | _SEVEN, SHAPE), Action.COPY_AGAIN),
    (WIDER, _change(_type((20, -1), "bigint", 5), {"exact": False}, SHAPE), Action.COPY_AGAIN),
    # A table without a key: a note is where its copy begins.
    (
        "its copy begins here, as it has no key",
        _change(SHAPE, {"settled": True}, SHAPE, replace(TABLE, key=(), state=TableState.COPYING)),
        Action.COPY_AGAIN,
    ),
    # "Layout of lake tables" in docs/tables.md.
    (
        "a column by which its lake table is partitioned is gone or has another type",
        _change(_without(5), {}, SHAPE, replace(TABLE, partitioning=LakePartitioning.by(5, "identity"))),
        Action.COPY_AGAIN,
    ),
    # A label is renamed, before those who wrote the former one have ended.
    ("rows that print as before are to come", _change(_LABEL, {}, _types(**{"7": "ok"})), Action.WAIT),
]


@pytest.mark.parametrize(("rule", "facts", "action"), _MORE)
def test_rules_of_the_other_sections(rule: str, facts: SchemaChange, action: Action) -> None:
    decision = first_rule(DECISION_RULES, facts).result(facts)
    assert decision.action is action, decision.reason
    assert rule in _applying(facts)


def test_an_announced_rewrite_waits_for_its_description() -> None:
    announced = SchemaChange(TABLE, Note(TABLE.table_id, rewritten=4), None)
    assert first_rule(DECISION_RULES, announced).name == "a rewrite that is only announced"


def test_every_rule_has_a_case() -> None:
    named = {rule for cases in SECTIONS.values() for _, _, rule in cases.values()} | {rule for rule, *_ in _MORE}
    rules: list[Rule[Any, Any]] = [*NEW_COLUMN_RULES, *CHANGED_COLUMN_RULES, *COPY_RULES, *DECISION_RULES]
    # The other tests have these: a copy is made by each of the other rules.
    assert {rule.name for rule in rules} - named == {"rows may be wrong", "a rewrite that is only announced"}
    assert len({rule.name for rule in rules}) == len(rules)
