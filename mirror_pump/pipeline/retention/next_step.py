"""Decides which table comes next, and the next step of each of its partitions, from its row in the catalog and facts.

No I/O.

The oldest partition goes first: the cut-line passes partitions in their order, and never moves back. Meanwhile all due
partitions are sealed, and those below the cut-line do not wait for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from mirror_pump.model import TableId
from mirror_pump.partition_life import PartitionState
from mirror_pump.source.retention.partitions import Partition, RetentionChoices


class PartitionStep(StrEnum):
    """What is done next about a partition. Steps that are a statement of sql/queries/retention.sql have its name."""

    NONE = "none"
    """Something else has to happen first, or nothing is left to be done."""
    NOT_DUE = "not due"
    """Its rows stay in the heap, and nothing was begun."""
    SEAL = "seal"
    """Its changes are captured from then on."""
    NOTE_SEAL = "sealed"
    """The position of its seal is recorded: the pump was killed before it was, or the partition was truncated since."""
    UNSEAL = "unseal"
    """Its seal is taken back: it is not due any more."""
    ADVANCE = "advance"
    """The cut-line passes it."""
    PROVE = "proven"
    """It is compared with the lake."""
    CHECK_ALTERED = "unproven"
    """It stays in the heap, and is compared again: a command may have changed its rows behind its triggers."""
    STAY = "stay"
    """It is proven, and not due any more: that is noted."""
    DROP = "drop"
    """It is dropped or detached."""


@dataclass(frozen=True)
class PartitionFacts:
    """What its row does not say about a partition."""

    first: bool = True
    """No older partition waits for the cut-line."""
    due: bool = True
    """It lies far enough behind the newest key. Above the cut-line: so do all older ones."""
    grace_over: bool = True
    """It was proven long enough ago."""
    keep_heap: bool = False
    """The table's partitions stay in the heap."""

    def asks_due(self, partition: Partition) -> bool:
        """Whether the step depends on `due`, for which the newest key may have to be read."""
        if partition.state.is_above_cutline:
            return partition.name is not None
        return partition.state is PartitionState.TIERED and self.grace_over and not self.keep_heap


def next_step(partition: Partition, facts: PartitionFacts) -> PartitionStep:
    """The partition's next step."""
    attached = partition.name is not None
    match partition.state:
        case PartitionState.HOT | PartitionState.SEALING if attached and not facts.due:
            return PartitionStep.UNSEAL if partition.captured else PartitionStep.NOT_DUE
        case PartitionState.HOT if attached:
            return PartitionStep.SEAL
        case PartitionState.HOT | PartitionState.SEALING:
            if partition.sealed_lsn is None:
                return PartitionStep.NOTE_SEAL
            return PartitionStep.ADVANCE if facts.first else PartitionStep.NONE
        case PartitionState.TIERING:
            # A comparison reads the whole partition, and that of a late one is unlikely to succeed soon.
            hopeless = partition.attached_late and partition.disproved
            return PartitionStep.PROVE if attached and not hopeless else PartitionStep.NONE
        case PartitionState.TIERED if facts.keep_heap:
            return PartitionStep.CHECK_ALTERED if attached and partition.altered else PartitionStep.NONE
        case PartitionState.TIERED if not facts.grace_over:
            return PartitionStep.NONE
        case PartitionState.TIERED if not facts.due:
            return PartitionStep.STAY
        case PartitionState.TIERED:
            return PartitionStep.DROP if attached else PartitionStep.NONE
        case PartitionState.DROPPED:
            return PartitionStep.NONE
        case _:
            assert_never(partition.state)


def next_steps(
    partitions: Iterable[Partition], choices: RetentionChoices, is_due: Callable[[Partition], bool]
) -> Iterator[tuple[Partition, PartitionStep]]:
    """The next step of each partition, given the oldest first. Each is decided once the one before it was taken.
    `is_due` is called only where it matters."""
    first = all_due = True
    for partition in partitions:
        above = partition.state.is_above_cutline
        grace_over = partition.grace_left(choices.drop_grace) <= timedelta(0)
        facts = PartitionFacts(first, all_due, grace_over, choices.keep_heap)
        if facts.asks_due(partition):
            facts = replace(facts, due=(all_due or not above) and is_due(partition))
        if above:
            first, all_due = False, facts.due
        yield partition, next_step(partition, facts)


class Turns:
    """Which table the pump looks at next, over all sessions.

    Tables take turns, in the order of their IDs. A session may end during a turn, and does each time the cut-line of a
    table with a stream advances: the next session gives the turn to the table after it.
    """

    def __init__(self) -> None:
        self._last: TableId | None = None
        """The table whose turn began last."""

    def begin(self, table_id: TableId) -> None:
        """Notes that the table's turn begins."""
        self._last = table_id

    def order(self, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """The tables, from the one whose turn it is on."""
        return tuple(sorted(tables, key=lambda table_id: (self._last is not None and table_id <= self._last, table_id)))
