"""The phases of operations in modak.op_log: complete, and the only ones that SQL writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.operation_life import OPERATION_TRANSITIONS, OperationPhase
from sql import queries
from sql.mirror_names import of_mirror

_SQL = Path(__file__).parents[2] / "sql"
_PHASE = re.compile(r"'(" + "|".join(OperationPhase) + r")'")


def _statements() -> Iterator[tuple[str, str]]:
    """Names and texts of all named queries and functions."""
    for path in (_SQL / "queries").glob("*.sql"):
        yield from ((f"{path.stem}.{name}", of_mirror(text, None)) for name, text in queries(path.stem).items())
    for path in (_SQL / "functions").glob("*.sql"):
        for function in re.split(r"(?=CREATE OR REPLACE FUNCTION )", path.read_text(encoding="utf-8"))[1:]:
            yield function.split("(")[0].split()[-1], function


def _changes() -> Iterator[tuple[str, set[str | None] | None, set[str] | None]]:
    """What SQL writes into the phase: the statement's name, the phases (None: a parameter), and those that it may come
    from (None: it does not say)."""
    for name, text in _statements():
        for change in re.findall(r"(?:UPDATE|INSERT INTO|DELETE FROM) modak\.op_log\b.*?(?=;|\Z)", text, re.DOTALL):
            assigned, _, condition = change.partition("WHERE")
            former = set(_PHASE.findall(condition)) or None
            if change.startswith("DELETE"):
                if "phase" in condition:
                    yield name, {None}, former
            elif change.startswith("INSERT"):
                yield name, None if "%(phase)s" in change else set(_PHASE.findall(change)), None
            elif re.search(r"\bphase = ", assigned):
                yield name, None if "phase = %(phase)s" in assigned else set(_PHASE.findall(assigned)), former


def test_sql_makes_these_transitions_and_no_other() -> None:
    listed = {transition.statement: transition for transition in OPERATION_TRANSITIONS}
    assert len(listed) == len(OPERATION_TRANSITIONS)
    seen = set()
    for name, phases, formers in _changes():
        seen.add(name)
        assert name in listed, f"{name} writes a phase"
        if phases is None:
            assert len(listed[name].phases) > 1, name
        else:
            assert phases == set(listed[name].phases), name
        if formers is not None:
            assert formers == set(listed[name].formers), name
    assert seen == set(listed)


def test_sql_asks_for_no_other_phase() -> None:
    """A phase that nothing writes would be waited for in vain."""
    for name, text in _statements():
        if "op_log" in text:
            for asked in re.findall(r"\bphase (?:= |IN )(\([^)]*\)|'\w+')", text):
                assert set(re.findall(r"'(\w+)'", asked)) <= set(OperationPhase), name


def test_every_phase_is_reached() -> None:
    assert {phase for made in OPERATION_TRANSITIONS for phase in made.phases} == {*OperationPhase, None}
    assert {former for made in OPERATION_TRANSITIONS for former in made.formers} <= {*OperationPhase, None}
