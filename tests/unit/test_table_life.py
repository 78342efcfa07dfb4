"""The states of a mirrored table and their transitions: complete, the same in the docs, and the only way to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror_pump.model import TableState
from mirror_pump.pipeline.operations.combinations import ORDER
from mirror_pump.table_life import TRANSITIONS, TableEvent, state_after, state_by, states_before
from sql import queries
from sql.mirror_names import of_mirror

_CATALOG = Path(__file__).parents[2] / "sql" / "migrations" / "0001_catalog.sql"
_DOC = Path(__file__).parents[2] / "docs" / "design" / "operations.md"


def _rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of the document, without its first two lines."""
    section = _DOC.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_state_is_reached_and_left() -> None:
    assert {transition.state for transition in TRANSITIONS} == {*TableState, None}
    assert {transition.former_state for transition in TRANSITIONS} == {*TableState, None}
    assert {transition.event for transition in TRANSITIONS} == set(TableEvent)


def test_an_event_has_one_outcome_in_each_state() -> None:
    assert len({(transition.former_state, transition.event) for transition in TRANSITIONS}) == len(TRANSITIONS)


def test_what_is_not_in_the_table_raises() -> None:
    assert state_after(TableState.LIVE, TableEvent.FILL_NEEDED) is TableState.FILLING
    with pytest.raises(ValueError, match="failed"):
        state_after(TableState.FAILED, TableEvent.COPIED_AGAIN)
    with pytest.raises(ValueError, match="not mirrored"):
        state_after(None, TableEvent.COMPLETED)
    with pytest.raises(ValueError, match="live"):
        state_after(TableState.LIVE, TableEvent.UNREGISTERED)


def test_an_update_is_told_where_it_comes_from_and_leads_to() -> None:
    assert set(states_before(TableEvent.COMPLETED)) == {"copying", "filling"}
    assert state_by(TableEvent.COMPLETED) is TableState.LIVE
    assert set(states_before(TableEvent.FAILED)) == {state.value for state in TableState} - {"dropped"}
    assert set(states_before(TableEvent.DROPPED)) == {state.value for state in TableState}
    assert state_by(TableEvent.COPIED_TO_FILL) is TableState.FILLING
    with pytest.raises(ValueError, match="0 states"):
        state_by(TableEvent.UNREGISTERED)


def test_the_database_knows_the_same_states() -> None:
    checked = re.search(
        r"CREATE TABLE modak\.mirror_tables \(.*?state IN \(([^)]*)\)", _CATALOG.read_text(encoding="utf-8"), re.DOTALL
    )
    assert checked is not None
    assert set(re.findall(r"'(\w+)'", checked[1])) == {state.value for state in TableState}


def test_no_statement_changes_a_state_but_by_a_transition() -> None:
    """Each UPDATE that sets a state takes it, and the one before, as parameters, which come from `table_life`."""
    setting = []
    for path in (Path(__file__).parents[2] / "sql" / "queries").glob("*.sql"):
        for name, statement in queries(path.stem).items():
            for update in re.findall(
                r"UPDATE modak\.mirror_tables\b(.*?)(?=\bUPDATE\b|\Z)", of_mirror(statement, None), re.DOTALL
            ):
                assigned = update.split("WHERE")[0]
                if re.search(r"\bstate\s*=", assigned):
                    setting.append(f"{path.stem}.{name}")
                    assert re.search(r"\bstate\s*=\s*%\(state\)s", assigned), name
                    assert re.search(r"\bstate\s*=\s*(ANY )?\(?%\(former\)s", update.split("WHERE", 1)[1]), name
    assert sorted(setting) == [
        "change.store",
        "publish.fail",
        "publish.go_live",
        "publish.move_frontier",
        "pump.failed_and_dropped",
        "resync.mark",
    ]


def test_the_documented_transitions_are_the_codes() -> None:
    code = {
        (transition.former_state or "-", transition.event.value, transition.state or "-") for transition in TRANSITIONS
    }
    documented = [
        (former, event, state)
        for states, event, state, _ in _rows("The life of a table")
        for former in states.split(", ")
    ]
    assert set(documented) == code
    assert len(documented) == len(TRANSITIONS)


def test_the_documented_operations_are_the_codes() -> None:
    assert [name for name, *_ in _rows("The operations")] == [kind.__name__ for kind in ORDER]
