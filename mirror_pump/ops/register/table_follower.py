"""Registers tables that are created later and match a pattern that is followed (`register --follow-new`).

It looks at the catalog of the database every few seconds, and so needs no event trigger. It has no rights but those of
the pump's role: where that may not register tables, `status` says which ones an admin has to register.

What it runs is `register` of a name, as a person would: a role that may create tables in a followed schema decides what
is copied, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.errors import ConnectionLost, one_line_of, with_remedy
from mirror_pump.ops.catalog_poll import CatalogPoll
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followed import NewTable, followed_patterns, new_tables, refuse_to_join
from mirror_pump.source.connect import PgConnection, source_errors


def _unseen(_: Sequence[TableProgress]) -> None:
    """The pump copies the tables, and tells."""


@dataclass(frozen=True)
class _Joining:
    """A table that matches a pattern."""

    table: NewTable
    profile: str | None
    """As of NewTablePattern."""


class TableFollower(CatalogPoll[_Joining]):
    """The thread that looks for new tables while the pump leads. Enter it to start, leave it to stop."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        super().__init__(settings, "follow")
        self._observer = observer

    def _due(self, connection: PgConnection) -> list[_Joining]:
        with source_errors("looking for new tables"):
            patterns = followed_patterns(connection, self._settings.slot)
            tables = new_tables(connection, self._settings.slot) if patterns else []
        joining = ((table, next((each for each in patterns if each.means(table.table)), None)) for table in tables)
        return [_Joining(table, pattern.profile) for table, pattern in joining if pattern is not None]

    def _do(self, connection: PgConnection, due: _Joining) -> None:
        table = due.table
        name = str(table.table)
        wish = TableOptions(profile=due.profile)
        outcomes = register(self._settings, [name], wait=False, on_progress=_unseen, observer=self._observer, wish=wish)
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if isinstance(error, ConnectionLost):
            raise error
        if error is not None:
            text = one_line_of(with_remedy(error))
            with source_errors("recording a table that is refused"):
                refuse_to_join(connection, self._settings.slot, table.table_id, text)
            self._log.warning("a new table is refused", table=name, error=text)
