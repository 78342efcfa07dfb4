"""The states of a partition and their transitions: complete, and the only ones that SQL makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.partition_life import PARTITION_TRANSITIONS, PartitionState
from mirror_pump.pipeline.retention.next_step import PartitionStep
from sql import queries
from sql.mirror_names import of_mirror

_ROOT = Path(__file__).parents[2]
_STATE = re.compile(r"'(hot|sealing|tiering|tiered|dropped)'")
_BY_PARAMETER = {"modak.enter_partition": {PartitionState.HOT, PartitionState.TIERING}}
"""Where the statement takes the state as a parameter: what its callers give it (partition_sync, retention_plan)."""
_STEPS = {
    PartitionStep.SEAL: ("modak.seal", {PartitionState.HOT}),
    PartitionStep.UNSEAL: ("modak.unseal", {PartitionState.HOT, PartitionState.SEALING}),
    PartitionStep.ADVANCE: ("modak.advance", {PartitionState.HOT, PartitionState.SEALING}),
    PartitionStep.PROVE: ("proven", {PartitionState.TIERING}),
    PartitionStep.CHECK_ALTERED: ("unproven", {PartitionState.TIERED}),
    PartitionStep.DROP: ("modak.drop_proven", {PartitionState.TIERED}),
}
"""The statement of each step that changes the state, and in which states the step is taken."""


def _statements() -> Iterator[tuple[str, str]]:
    """Names and texts of all named queries and functions."""
    for path in (_ROOT / "sql" / "queries").glob("*.sql"):
        yield from ((name, of_mirror(text, None)) for name, text in queries(path.stem).items())
    for path in (_ROOT / "sql" / "functions").glob("*.sql"):
        for function in re.split(r"(?=CREATE OR REPLACE FUNCTION )", path.read_text(encoding="utf-8"))[1:]:
            yield function.split("(")[0].split()[-1], function


def _changes() -> Iterator[tuple[str, set[str], set[str] | None]]:
    """What SQL writes into the state: the statement's name, the states, and those that it may come from if it says."""
    for name, text in _statements():
        for change in re.findall(r"(?:UPDATE|INSERT INTO) modak\.partitions\b.*?(?=;|\Z)", text, re.DOTALL):
            if change.startswith("INSERT"):
                yield name, set(_BY_PARAMETER[name]), None
                continue
            assigned, condition = re.split(r"\bWHERE\b(?!.*\bWHERE\b)", change, maxsplit=1, flags=re.DOTALL)
            value = re.search(r"\bstate\s*=\s*(CASE.*?END|'\w+')", assigned, re.DOTALL)
            if value is None:
                continue
            # In `CASE WHEN state IN (...) THEN 'dropped' ELSE state END` the first ones are conditions.
            results = re.sub(r"WHEN.*?THEN", "", value[1], flags=re.DOTALL)
            former = re.search(r"\bstate (?:= |IN )(\([^)]*\)|'\w+')", value[1] + condition)
            yield name, set(_STATE.findall(results)), None if former is None else set(_STATE.findall(former[1]))


def test_sql_makes_these_transitions_and_no_other() -> None:
    found: dict[str, set[str]] = {}
    for name, states, formers in _changes():
        found[name] = found.get(name, set()) | states
        for state in states if formers is not None else ():
            allowed = [made for made in PARTITION_TRANSITIONS if (made.statement, made.state) == (name, state)]
            assert [set(made.formers) for made in allowed] == [formers], (name, state)
    listed: dict[str, set[str]] = {}
    for transition in PARTITION_TRANSITIONS:
        listed.setdefault(transition.statement, set()).add(transition.state)
    assert found == listed


def test_every_state_is_reached_and_left() -> None:
    assert {transition.state for transition in PARTITION_TRANSITIONS} == set(PartitionState)
    assert {former for made in PARTITION_TRANSITIONS for former in made.formers} == {*PartitionState, None}
    listed = [(former, made.statement, made.state) for made in PARTITION_TRANSITIONS for former in made.formers]
    assert len(set(listed)) == len(listed)


def test_a_step_is_taken_where_its_statement_is_allowed() -> None:
    for step, (statement, states) in _STEPS.items():
        formers = {former for made in PARTITION_TRANSITIONS if made.statement == statement for former in made.formers}
        assert states <= formers, step


def test_the_database_knows_the_same_states() -> None:
    catalog = (_ROOT / "sql" / "migrations" / "0001_catalog.sql").read_text(encoding="utf-8")
    checked = re.search(r"CREATE TABLE modak\.partitions \(.*?state IN \(([^)]*)\)", catalog, re.DOTALL)
    assert checked is not None
    assert re.findall(r"'(\w+)'", checked[1]) == [state.value for state in PartitionState]


def test_the_drawing_shows_transitions() -> None:
    text = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = text.split("(`modak.partitions.state`):")[1].split("```")[1]
    drawn = re.findall(r"^ +(\S+) --> (\S+): ", drawing, re.MULTILINE)
    listed = {(former, made.state.value) for made in PARTITION_TRANSITIONS for former in made.formers}
    assert len(drawn) >= 6
    assert set(drawn) <= listed
