"""Reports to the observer how tables change, and why they are copied again."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.operations.table_changes import TableChange

_DESCRIBED = "an earlier change of it made this necessary, and its new definition is known now"
"""Why a table is copied again, if only an earlier session knew the exact reason."""


class TableChangeReports:
    """The reports of one session."""

    def __init__(self, observer: Observer, waiting: Mapping[TableId, str]) -> None:
        """`waiting`: why the tables that await their description will be copied again. Earlier sessions have reported
        these tables."""
        self._observer = observer
        self._waiting = {table_id: _cause(reason) for table_id, reason in waiting.items()}

    def report(self, change: TableChange) -> None:
        """Report what happens to a changed table.

        A table that awaits its description before it is copied again is reported twice with the same reason: when the
        need for the copy is known, and when the copy begins.
        """
        table = change.table
        reason = change.reason
        if change.copy_again:
            former = self._waiting.pop(table.table_id, "")
            reason = ", ".join(dict.fromkeys(part for part in (former, reason) if part)) or _DESCRIBED
            if table.awaiting_description:
                self._waiting[table.table_id] = _cause(reason)
        self._observer(_step_of(change), table=str(table.name), reason=reason)


def _step_of(change: TableChange) -> Step:
    if change.waits_for_owner:
        return Step.TABLE_WAITING
    if change.copy_again:
        return Step.TABLE_COPIED_AGAIN
    return Step.TABLE_FILLING if change.fills else Step.TABLE_CHANGED


def _cause(reason: str) -> str:
    """The reason without the sentences that tell the owner what to do."""
    return reason.partition(". ")[0]
