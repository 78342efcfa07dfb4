"""The life of a mirrored table: its states, the events that change them, and which of these changes are allowed.

One enum (`TableState`) and one table (`TRANSITIONS`), which docs/design/operations.md repeats for readers; a test keeps
the two equal. Code that writes `modak.mirror_tables.state` asks here what the next state is (`state_after`), or from
which states an event may come (`states_before`), and has its UPDATE match no other: a change that is not in the table
either raises here or touches no row there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_pump.model import TableState


class TableEvent(StrEnum):
    """What changes a table's state, or could."""

    REGISTERED = "registered"
    COPY_RESTARTED = "copy restarted"
    """What was copied so far counts for nothing: a TRUNCATE, or a rewritten heap."""
    COPIED_AGAIN = "copied again"
    """Rows in the lake may be wrong; the table's present content is to take their place."""
    COPY_AWAITED = "copy awaited"
    """As COPIED_AGAIN, but the copy cannot begin yet: the table has to be described, or mended by its owner, first."""
    COPIED_TO_FILL = "copied, to be filled"
    """The copy of what is at or above the cut-line is complete; files below lack the value of a new column."""
    FILL_NEEDED = "fill needed"
    """Older rows lack the value of a new column, or were dropped with their partition: files have to be rewritten."""
    COMPLETED = "completed"
    """The frontier has passed the end of WAL that was noted when the copy or the fill was done."""
    FAILED = "failed"
    DROPPED = "dropped"
    """The table was dropped in Postgres."""
    UNREGISTERED = "unregistered"


@dataclass(frozen=True)
class Transition:
    """One allowed change."""

    former: TableState | None
    """None: the table is not mirrored."""
    event: TableEvent
    state: TableState | None
    """None: the table is not mirrored any more."""


TRANSITIONS = (
    Transition(None, TableEvent.REGISTERED, TableState.COPYING),
    Transition(TableState.WAITING, TableEvent.COPY_AWAITED, TableState.WAITING),
    Transition(TableState.WAITING, TableEvent.COPIED_AGAIN, TableState.COPYING),
    # Of a table with rows below the cut-line, files may have to be filled behind its copy.
    Transition(TableState.WAITING, TableEvent.FILL_NEEDED, TableState.WAITING),
    Transition(TableState.WAITING, TableEvent.FAILED, TableState.FAILED),
    Transition(TableState.WAITING, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.WAITING, TableEvent.UNREGISTERED, None),
    Transition(TableState.COPYING, TableEvent.COPY_RESTARTED, TableState.COPYING),
    Transition(TableState.COPYING, TableEvent.COPIED_AGAIN, TableState.COPYING),
    Transition(TableState.COPYING, TableEvent.COPY_AWAITED, TableState.WAITING),
    Transition(TableState.COPYING, TableEvent.FILL_NEEDED, TableState.COPYING),
    Transition(TableState.COPYING, TableEvent.COPIED_TO_FILL, TableState.FILLING),
    Transition(TableState.COPYING, TableEvent.COMPLETED, TableState.LIVE),
    Transition(TableState.COPYING, TableEvent.FAILED, TableState.FAILED),
    Transition(TableState.COPYING, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.COPYING, TableEvent.UNREGISTERED, None),
    Transition(TableState.FILLING, TableEvent.COPIED_AGAIN, TableState.COPYING),
    Transition(TableState.FILLING, TableEvent.COPY_AWAITED, TableState.WAITING),
    # Another column came, or another partition went, before the files were filled.
    Transition(TableState.FILLING, TableEvent.FILL_NEEDED, TableState.FILLING),
    Transition(TableState.FILLING, TableEvent.COMPLETED, TableState.LIVE),
    Transition(TableState.FILLING, TableEvent.FAILED, TableState.FAILED),
    Transition(TableState.FILLING, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.FILLING, TableEvent.UNREGISTERED, None),
    Transition(TableState.LIVE, TableEvent.COPIED_AGAIN, TableState.COPYING),
    Transition(TableState.LIVE, TableEvent.COPY_AWAITED, TableState.WAITING),
    Transition(TableState.LIVE, TableEvent.FILL_NEEDED, TableState.FILLING),
    Transition(TableState.LIVE, TableEvent.FAILED, TableState.FAILED),
    Transition(TableState.LIVE, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.LIVE, TableEvent.UNREGISTERED, None),
    # It failed twice before the first was published: the later error counts.
    Transition(TableState.FAILED, TableEvent.FAILED, TableState.FAILED),
    Transition(TableState.FAILED, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.FAILED, TableEvent.UNREGISTERED, None),
    Transition(TableState.DROPPED, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.DROPPED, TableEvent.UNREGISTERED, None),
)
"""Every allowed change, each at most once. What is not here is a programming error."""

_AFTER = {(transition.former, transition.event): transition.state for transition in TRANSITIONS}


def state_after(former: TableState | None, event: TableEvent) -> TableState:
    """The state that the event leads to. ValueError if the event cannot come in this state, or ends the mirroring."""
    state = _AFTER.get((former, event))
    if state is None:
        raise ValueError(f"a table that is {former or 'not mirrored'} has no state after the event {event!r}")
    return state


def state_by(event: TableEvent) -> TableState:
    """The one state that the event leads to, whatever state it comes in. ValueError if there is no such one."""
    found = {state for (_, known), state in _AFTER.items() if known is event and state is not None}
    if len(found) != 1:
        raise ValueError(f"the event {event!r} leads to {len(found)} states")
    return found.pop()


def states_before(event: TableEvent) -> list[str]:
    """The states in which the event may come, as the catalog writes them: for the WHERE of an UPDATE."""
    return [former.value for former, known in _AFTER if known is event and former is not None]
