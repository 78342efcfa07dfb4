"""What a client can attach in place of a moment that cannot be shown."""

from __future__ import annotations

from collections.abc import Collection

from mirror_pump.model import Lsn, TableName
from mirror_pump.ops.reads.state_choice import LeftOutTable, Reason, StateChoice, TablePast, readable_frontiers
from mirror_pump.ops.reads.time_travel import time_text
from mirror_pump.rest_catalog.attachment_names import Attachment, View
from mirror_pump.rest_catalog.protocol import ProtocolError, bad_request

ATTACH_ANEW = "attach {name}@latest, which shows the present"


def moments_instead(view: View, tables: Collection[TablePast], around: Lsn) -> str:
    """What to attach: the moments nearest to `around` at which all of these tables can be read, each of which was there
    when this was asked, and the present."""
    names = [Attachment(view, point).warehouse for point in readable_frontiers(tables, around)]
    instead = ATTACH_ANEW.format(name=view)
    return f"attach {' or '.join(names)}, which can be read; or {instead}" if names else instead


def explained(choice: StateChoice, tables: Collection[TablePast], view: View) -> dict[TableName, str]:
    """Why tables are left out, and what shows each of them."""
    pasts = {table.name: table for table in tables}
    return {name: _explained(left_out, pasts.get(name), view) for name, left_out in choice.left_out.items()}


def _explained(left_out: LeftOutTable, table: TablePast | None, view: View) -> str:
    if left_out.reason is Reason.TIERED:
        return f"{left_out}; {ATTACH_ANEW.format(name='mirror')}"
    if left_out.reason is Reason.BEHIND:
        return f"{left_out}; attach the warehouse `mirror`, in which each table is as of its own frontier"
    if left_out.reason.is_of_history and table is not None and left_out.frontier is not None:
        return f"{left_out}; {moments_instead(view, [table], left_out.frontier)}"
    return str(left_out)


def nothing_by_then(tables: Collection[TablePast], view: View) -> ProtocolError:
    """The answer if no table has been published by the time that a client asks for."""
    steps = [step for table in tables for step in table.published]
    if not steps:
        return bad_request(f"the mirrored tables have no history; {ATTACH_ANEW.format(name=view)}")
    oldest = min(steps, key=lambda step: step.frontier)
    return bad_request(
        "the history of the mirrored tables does not go back that far; the oldest moment that can be read is"
        f" {Attachment(view, oldest.frontier).warehouse} ({time_text(oldest.moment_ms)});"
        f" {moments_instead(view, tables, oldest.frontier)}"
    )
