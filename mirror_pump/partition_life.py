"""The life of a partition of a table with heap retention: its states, what changes them, and how a step towards its
drop ends.

Each change of `modak.partitions.state` is made by one SQL statement, and is in `PARTITION_TRANSITIONS`.
`tests/unit/test_partition_life.py` reads the statements, and keeps both equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final


class PartitionState(StrEnum):
    """modak.partitions.state."""

    HOT = "hot"
    """The heap has the partition's rows. What the lake has of them follows the stream."""
    SEALING = "sealing"
    """Changes of the partition are captured."""
    TIERING = "tiering"
    """The cut-line has passed the partition. Its changes are corrections."""
    TIERED = "tiered"
    """It is proven that the lake holds the partition."""
    DROPPED = "dropped"
    """The partition is not the table's any more: dropped or detached, by the mirror or by its owner."""

    @property
    def is_above_cutline(self) -> bool:
        """Whether the cut-line has still to pass the partition."""
        return self in (PartitionState.HOT, PartitionState.SEALING)


@dataclass(frozen=True)
class PartitionTransition:
    """An allowed change."""

    formers: tuple[PartitionState | None, ...]
    """The states that it may come from. None: the mirror does not know the partition."""
    statement: str
    """The SQL that makes the change: a function of schema modak, or a query of sql/queries/retention.sql."""
    state: PartitionState
    why: str
    """Who makes the change, and when."""


_HOT, _SEALING, _TIERING, _TIERED, _DROPPED = PartitionState
PARTITION_TRANSITIONS = (
    PartitionTransition(
        (None, _DROPPED), "modak.enter_partition", _HOT, "registration, or the look at the heap: it is attached"
    ),
    PartitionTransition((None, _DROPPED), "modak.enter_partition", _TIERING, "it is attached below the cut-line"),
    PartitionTransition((_HOT,), "modak.seal", _SEALING, "retention: it is due"),
    PartitionTransition((_HOT, _SEALING), "modak.unseal", _HOT, "retention: it is not due any more"),
    PartitionTransition((_SEALING,), "crowded", _HOT, "retention: too many changes were captured, it is sealed again"),
    PartitionTransition(
        (_HOT, _SEALING),
        "back",
        _HOT,
        "the look at the heap: other bounds, no trigger, detached for a while, or copied",
    ),
    PartitionTransition((_SEALING,), "modak.advance", _TIERING, "the publish that moves the cut-line past it"),
    PartitionTransition((_HOT, _SEALING), "modak.advance", _DROPPED, "the same publish: its owner took it away before"),
    PartitionTransition(
        (_HOT, _SEALING), "modak.begin_cutline", _DROPPED, "the ingest that begins the cut-line: its owner detached it"
    ),
    PartitionTransition((_TIERING,), "proven", _TIERED, "retention: the lake has its rows"),
    PartitionTransition((_TIERING, _TIERED), "unproven", _TIERING, "retention: altered, and it stays"),
    PartitionTransition(
        (_TIERING, _TIERED),
        "modak.unwatched",
        _TIERING,
        "the look at the heap: its trigger was off, or it was detached",
    ),
    PartitionTransition((_TIERED,), "modak.drop_proven", _TIERING, "retention: it was altered since it was proven"),
    PartitionTransition((_TIERED,), "modak.drop_proven", _DROPPED, "retention: its grace period is over"),
    PartitionTransition(
        (_HOT, _SEALING), "replaced", _DROPPED, "the look at the heap: its owner put another in its place"
    ),
    PartitionTransition((_TIERING, _TIERED), "gone", _DROPPED, "the look at the heap: its owner took it away"),
)
"""Every allowed change, each once."""


class StepEnd(Enum):
    """How a step ended that was not refused."""

    TAKEN = auto()
    WAITING = auto()
    """Something else has to happen first, and no back-off is needed: the step is looked at in the next turn."""


TAKEN: Final = StepEnd.TAKEN
WAITING: Final = StepEnd.WAITING


@dataclass(frozen=True)
class Refused:
    """A step was not taken. It is tried again after a back-off."""

    reason: str
    """For `status` and the log."""


StepResult = StepEnd | Refused
"""How a step of a partition, of a cut-line or of a retention line ended."""
