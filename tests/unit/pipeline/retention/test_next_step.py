"""What is next for a partition, given its row and a few facts: a table of cases, without a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mirror_pump.model import Lsn, TableName
from mirror_pump.partition_life import PartitionState
from mirror_pump.pipeline.retention.next_step import PartitionFacts, PartitionStep, next_step, next_steps
from mirror_pump.source.retention.partitions import Partition, RetentionChoices

HOT, SEALING, TIERING, TIERED, DROPPED = PartitionState
S = PartitionStep
P0 = Partition(
    "p0",
    20000,
    lo=0,
    hi=10,
    state=HOT,
    sealed_lsn=None,
    truncated=False,
    reason=None,
    attempts=0,
    name=TableName("public", "p0"),
    present_lo=0,
    present_hi=10,
    captured=False,
    corrected=False,
    disproved=False,
    proven_for=7200.0,
)
GONE: dict[str, Any] = {"name": None, "present_lo": None, "present_hi": None}
SEALED: dict[str, Any] = {"sealed_lsn": Lsn(7), "captured": True}
UNDUE, LATER, GRACE, KEPT = {"due": False}, {"first": False}, {"grace_over": False}, {"keep_heap": True}


@pytest.mark.parametrize(
    ("state", "row", "facts", "step"),
    [
        (HOT, {}, {}, S.SEAL),
        (HOT, {}, LATER, S.SEAL),
        (HOT, {}, UNDUE, S.NOT_DUE),
        (HOT, {}, UNDUE | KEPT, S.NOT_DUE),
        (HOT, {}, KEPT, S.SEAL),
        (HOT, {"captured": True}, UNDUE, S.UNSEAL),
        (HOT, {"sealed_lsn": Lsn(7)}, {}, S.SEAL),
        # Its owner took it away: the cut-line passes it in its turn, due or not.
        (HOT, GONE | {"sealed_lsn": Lsn(7)}, UNDUE, S.ADVANCE),
        (HOT, GONE | {"sealed_lsn": Lsn(7)}, LATER, S.NONE),
        (HOT, GONE, LATER, S.NOTE_SEAL),
        (SEALING, SEALED, {}, S.ADVANCE),
        (SEALING, SEALED, LATER, S.NONE),
        (SEALING, SEALED, UNDUE, S.UNSEAL),
        (SEALING, SEALED | {"captured": False}, UNDUE, S.NOT_DUE),
        (SEALING, {"captured": True}, {}, S.NOTE_SEAL),
        (SEALING, {"captured": True}, LATER, S.NOTE_SEAL),
        (SEALING, {"captured": True}, UNDUE, S.UNSEAL),
        (SEALING, SEALED | GONE, UNDUE, S.ADVANCE),
        (TIERING, SEALED, {}, S.PROVE),
        (TIERING, SEALED, LATER | UNDUE | GRACE | KEPT, S.PROVE),
        (TIERING, SEALED | GONE, {}, S.NONE),
        (TIERING, SEALED | {"disproved": True}, {}, S.PROVE),
        (TIERING, {"disproved": True}, {}, S.NONE),
        (TIERING, {}, {}, S.PROVE),
        (TIERED, SEALED, {}, S.DROP),
        (TIERED, SEALED, LATER, S.DROP),
        (TIERED, SEALED | {"altered": True}, {}, S.DROP),
        (TIERED, SEALED, GRACE, S.NONE),
        (TIERED, SEALED, GRACE | UNDUE, S.NONE),
        (TIERED, SEALED, UNDUE, S.STAY),
        (TIERED, SEALED | GONE, {}, S.NONE),
        (TIERED, SEALED, KEPT, S.NONE),
        (TIERED, SEALED | {"altered": True}, KEPT, S.CHECK_ALTERED),
        (TIERED, SEALED | {"altered": True}, KEPT | GRACE | UNDUE, S.CHECK_ALTERED),
        (TIERED, SEALED | GONE | {"altered": True}, KEPT, S.NONE),
        (DROPPED, GONE, {}, S.NONE),
    ],
)  # fmt: skip
def test_the_next_step(state: PartitionState, row: dict[str, Any], facts: dict[str, bool], step: PartitionStep) -> None:
    assert next_step(replace(P0, state=state, **row), PartitionFacts(**facts)) is step


CHOICES = RetentionChoices(
    0, None, timedelta(hours=1), detach=False, stopped=None, not_made=None, live=True, lag=5, cut=0, applied=Lsn(9)
)
_SEALING = {"state": SEALING, **SEALED}


@pytest.mark.parametrize(
    ("rows", "due", "choices", "steps", "asked"),
    [
        # All due partitions are sealed, and the cut-line passes the oldest.
        ([_SEALING, _SEALING, {}], {0, 1, 2}, {}, [S.ADVANCE, S.NONE, S.SEAL], 3),
        # One that is not due keeps all later ones in the heap, whose due is not looked up; the cut-line waits as well.
        ([{}, _SEALING, {}], set(), {}, [S.NOT_DUE, S.UNSEAL, S.NOT_DUE], 1),
        ([{}, _SEALING | GONE], set(), {}, [S.NOT_DUE, S.NONE], 1),
        # Those below the cut-line keep no one waiting, nor wait for anyone.
        ([{"state": TIERING}, _SEALING], {0, 1, 2}, {}, [S.PROVE, S.ADVANCE], 1),
        ([{"state": TIERED}, {"state": TIERED}, _SEALING], {0}, {}, [S.DROP, S.STAY, S.UNSEAL], 3),
        ([_SEALING | GONE, {}, {"state": TIERED}], {0, 1, 2}, {}, [S.ADVANCE, S.SEAL, S.DROP], 2),
        ([{}, {"state": TIERED}], {1}, {}, [S.NOT_DUE, S.DROP], 2),
        # The newest key is not read for those that stay anyway.
        (
            [{"state": TIERED, "proven_for": 3599.0}, {"state": TIERED, "proven_for": None}],
            {0, 1, 2},
            {},
            [S.NONE] * 2,
            0,
        ),
        ([{"state": TIERED}], {0, 1, 2}, {"keep_heap": True}, [S.NONE], 0),
        ([{"state": TIERED, "proven_for": 3600.0}], {0, 1, 2}, {}, [S.DROP], 1),
    ],
)
def test_the_steps_of_a_table(
    rows: list[dict[str, Any]], due: set[int], choices: dict[str, Any], steps: list[PartitionStep], asked: int
) -> None:
    partitions = [replace(P0, relation_id=number, **row) for number, row in enumerate(rows)]
    looked_up: list[int | None] = []

    def is_due(partition: Partition) -> bool:
        looked_up.append(partition.relation_id)
        return partition.relation_id in due

    assert [step for _, step in next_steps(partitions, replace(CHOICES, **choices), is_due)] == steps
    assert len(looked_up) == asked
