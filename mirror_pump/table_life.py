"""The life of a mirrored table: its states, the events that change them, and which of these changes are allowed.

The states are `TableState`, and the allowed changes are `TRANSITIONS`. docs/design/operations.md repeats them, and a
test keeps the two equal. Code that writes `modak.mirror_tables.state` looks up the next state (`state_after`) or the
states in which an event is allowed (`states_before`), and its UPDATE matches only these. So a change that is not in the
table either raises ValueError here or updates no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_pump.model import TableState


class TableEvent(StrEnum):
    """Something that happens to a table and may change its state."""

    REGISTERED = "registered"
    REGISTERED_TIERED = "registered as tiered"
    """The lake holds all that it should hold of the table: nothing, since no partition has left the heap."""
    COPY_RESTARTED = "copy restarted"
    """What was copied so far is worthless, because of a TRUNCATE or a rewrite of the heap."""
    COPIED_AGAIN = "copied again"
    """Rows in the lake may be wrong. A new initial copy will replace them."""
    COPY_AWAITED = "copy awaited"
    """Like COPIED_AGAIN, but the copy cannot begin yet: first the stream has to describe the table, or its owner has to
    fix something."""
    COPIED_TO_FILL = "copied, to be filled"
    """The copy of the rows at or above the cut-line is complete. Files with rows below it lack the value of a new
    column."""
    FILL_NEEDED = "fill needed"
    """Files have to be rewritten: their rows lack the value of a new column, or were dropped with their partition."""
    COMPLETED = "completed"
    """The copy or the fill ended, and the frontier has passed the end of WAL at that time."""
    FAILED = "failed"
    DROPPED = "dropped"
    """The table was dropped in Postgres."""
    UNREGISTERED = "unregistered"


@dataclass(frozen=True)
class Transition:
    """One allowed change."""

    former_state: TableState | None
    """None: the table is not mirrored."""
    event: TableEvent
    state: TableState | None
    """None: the table is no longer mirrored."""


TRANSITIONS = (
    Transition(None, TableEvent.REGISTERED, TableState.COPYING),
    Transition(None, TableEvent.REGISTERED_TIERED, TableState.LIVE),
    Transition(TableState.WAITING, TableEvent.COPY_AWAITED, TableState.WAITING),
    Transition(TableState.WAITING, TableEvent.COPIED_AGAIN, TableState.COPYING),
    # If the table has rows below the cut-line, files may have to be filled after its copy.
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
    # Another column was added, or another partition dropped, before the files were filled.
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
    # The table failed twice before the first failure was published. The later error replaces the earlier one.
    Transition(TableState.FAILED, TableEvent.FAILED, TableState.FAILED),
    Transition(TableState.FAILED, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.FAILED, TableEvent.UNREGISTERED, None),
    Transition(TableState.DROPPED, TableEvent.DROPPED, TableState.DROPPED),
    Transition(TableState.DROPPED, TableEvent.UNREGISTERED, None),
)
"""Every allowed change, each once. Any other change is a programming error."""

_AFTER = {(transition.former_state, transition.event): transition.state for transition in TRANSITIONS}


def state_after(former_state: TableState | None, event: TableEvent) -> TableState:
    """The state that the event leads to. Raises ValueError if the event is not allowed in this state, or ends the
    mirroring of the table."""
    state = _AFTER.get((former_state, event))
    if state is None:
        raise ValueError(f"a table that is {former_state or 'not mirrored'} has no state after the event {event!r}")
    return state


def state_by(event: TableEvent) -> TableState:
    """The state that the event leads to from every state in which it is allowed. Raises ValueError if there is not
    exactly one."""
    states = {state for (_, allowed_event), state in _AFTER.items() if allowed_event is event and state is not None}
    if len(states) != 1:
        raise ValueError(f"the event {event!r} leads to {len(states)} states")
    return states.pop()


def states_before(event: TableEvent) -> list[str]:
    """The states in which the event is allowed, as the catalog stores them, for the WHERE clause of an UPDATE."""
    return [
        former_state.value
        for former_state, allowed_event in _AFTER
        if allowed_event is event and former_state is not None
    ]
