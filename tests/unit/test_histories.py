"""A history without faults is accepted, and one with a planted fault is refused, with what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proofs.histories.judge import Judge
from tests.support.made_histories import Fields, made_history

Plant = Callable[[list[Fields]], object]


def _read(history: list[Fields], door: str, number: int = -1) -> Fields:
    """One of the reads by a door."""
    return [each for each in history if each["type"] == "ok" and each.get("door") == door][number]


def _lists(history: list[Fields], door: str, number: int = -1) -> dict[str, list[int]]:
    return {name: values for _, name, values in _read(history, door, number)["value"]}


def _show(history: list[Fields], door: str, number: int, other: tuple[str, int]) -> None:
    """A read shows what another one has shown."""
    shown = _read(history, *other)
    _read(history, door, number).update(value=shown["value"], balances=shown["balances"])


def _commits(history: list[Fields]) -> list[Fields]:
    return [each for each in history if each["f"] == "commits"]


def _rows(history: list[Fields], number: int) -> list[list[Any]]:
    return list(_read(history, "feed", number)["rows"])


_NO_STATE = "is no state of the database"
_PLANTED: dict[str, tuple[Plant, str]] = {
    "a lost append": (lambda h: _lists(h, "latest", 1)["a/1"].remove(3), _NO_STATE),
    "an append that is there twice": (lambda h: _lists(h, "latest", 1)["a/1"].append(1), _NO_STATE),
    "appends in another order": (lambda h: _lists(h, "latest", 1)["a/1"].reverse(), _NO_STATE),
    "half a transaction of two tables": (lambda h: _lists(h, "latest", 1)["b/1"].remove(5), _NO_STATE),
    "half a transfer": (lambda h: _read(h, "latest", 1)["balances"].update({"y/1": 105}), _NO_STATE),
    "a deleted row": (lambda h: _read(h, "wait")["value"].append(["r", "a/1", [1, 3]]), _NO_STATE),
    "a value that nobody has committed": (lambda h: _lists(h, "latest", 1)["a/2"].append(99), "no committed"),
    "a frontier that goes back": (lambda h: _show(h, "latest", 2, ("latest", 0)), "goes back behind latest read"),
    "a stale read after wait": (lambda h: _show(h, "wait", -1, ("latest", 1)), "lacks transaction 4"),
    "a stale snapshot": (lambda h: _show(h, "postgres", -1, ("latest", 1)), _NO_STATE),
    "another state than that of the frontier": (lambda h: _show(h, "frontier", -1, ("wait", -1)), _NO_STATE),
    "another state than that of the moment": (lambda h: _show(h, "moment", -1, ("latest", 0)), _NO_STATE),
    "what is to come": (lambda h: _show(h, "latest", 0, ("latest", 1)), "shows transaction 3, which began later"),
    "a commit that PostgreSQL does not have": (lambda h: _commits(h)[0].update(value=[]), "transaction 1 is ok to its"),
    "a gap in a feed": (lambda h: _read(h, "feed", 1)["rows"].pop(0), "is not what its parts are together"),
    "a gap in a feed alone": (lambda h: (_read(h, "feed", 1)["rows"].pop(0), h.pop()), "lacks, or has too many"),
    "a row of a feed twice": (lambda h: _read(h, "feed", 1)["rows"].append(_rows(h, 1)[0]), "has a change twice"),
    "feeds that overlap": (lambda h: _read(h, "feed", 1)["rows"].append(_rows(h, 0)[0]), "not between its frontiers"),
    "feeds that do not meet": (lambda h: _read(h, "feed", 1).update(since=300), "does not begin where"),
    "a feed with another value": (lambda h: (_rows(h, 1)[1].__setitem__(3, [9]), h.pop()), "does not turn the state"),
    "a whole feed with more": (lambda h: _read(h, "feed", 2)["rows"].append(_rows(h, 0)[0]), "what its parts are"),
}  # fmt: skip


def test_a_history_without_faults_is_accepted() -> None:
    verdict = Judge(made_history()).judge()
    assert verdict.faults == []
    assert {"reads by wait, ok": 2, "reads by feed, ok": 3, "transactions, ok": 4}.items() <= verdict.counts.items()


@pytest.mark.parametrize("planted", _PLANTED)
def test_a_planted_fault_is_refused(planted: str) -> None:
    plant, words = _PLANTED[planted]
    history = made_history()
    plant(history)
    faults = Judge(history).judge().faults
    assert any(words in fault for fault in faults), faults


def test_an_unknown_outcome_is_settled_by_the_wal() -> None:
    """A client that lost its connection at COMMIT: reads may show the transaction if it has happened, and only then."""
    history = made_history()
    (ended,) = [each for each in history if each["type"] == "ok" and each.get("xid") == 4]
    ended["type"] = "info"
    assert Judge(history).judge().faults == []
    _commits(history)[3]["value"] = []
    assert any("shows what no committed transaction appended" in fault for fault in Judge(history).judge().faults)


def test_the_id_of_a_transaction_that_a_crash_undid_is_given_again() -> None:
    history = made_history()
    undone = {"process": 9, "client": "other", "f": "txn", "value": [["append", "a/1", 8]], "deletes": [], "xid": 1}
    history[1:1] = [{**undone, "index": 0, "time": 0, "type": type_} for type_ in ("invoke", "fail")]
    assert Judge(history).judge().faults == []
    history[2]["type"] = "ok"
    assert any("transaction 1 is ok to its client" in fault for fault in Judge(history).judge().faults)


def test_a_reset_excuses_its_table_alone() -> None:
    history = made_history()
    feed = _read(history, "feed", 1)
    # The whole feed no longer is what its parts are.
    history.pop()
    feed["rows"] = [
        ["a", "reset", None, None, feed["until"] - 1, 0, 0],
        *(row for row in feed["rows"] if row[0] != "a"),
    ]
    assert Judge(history).judge().faults == []
    feed["rows"] = [row for row in feed["rows"] if row[0] != "b"]
    assert any("lacks, or has too many" in fault for fault in Judge(history).judge().faults)
