"""Finds changes of tiered tables, which the stream does not concern: compares the catalogs with what the mirror knows.

Nothing depends on the moment at which a change is found. Corrections name columns as the heap does, from the command on
(modak.mirror_tell). The rows of a partition come into the lake, and leave the heap, only while the mirror knows the
table's columns, which modak.advance and modak.drop_proven check under their locks. Chunks that were read with the
former columns are forgotten in the publish of the change. What the lake has is right under the new columns, or is
filled, or the table fails (mirror_pump.pipeline.schema.decisions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirror_pump.errors import TableError, about
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.events import TieredTableChanged
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.schema.decisions import Action, SchemaChangeDecision, decide
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import load_table, wants_defaults
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.change_notes import (
    INVALID_NOTE_ERRORS,
    Note,
    describe_note,
    note_tables,
    observed_note,
)
from sql import queries

_SQL = queries("shape")


def differing_tiered(connection: PgConnection, slot: str) -> list[TableId]:
    """The slot's tiered tables that are not as the mirror knows them."""
    with source_errors("looking for changes of tiered tables"):
        return [TableId(table_id) for (table_id,) in connection.execute(_SQL["tiered_differing"], {"slot": slot})]


def tiered_changes(connection: PgConnection, differing: Sequence[TableId]) -> Iterator[TieredTableChanged]:
    """The changes of these tables. One that a session is altering at the moment is left for the next call."""
    for table_id in differing:
        table = load_table(connection, table_id)
        if table is None or table.state.has_ended:
            continue
        if not note_tables(connection, [table.table_id]):
            continue
        try:
            with work_for(table):
                note = observed_note(connection, table.table_id)
                change = None if note is None else _change(connection, table, note)
        except TableError as error:
            yield TieredTableChanged(table, failure=Failure.of(table, error))
        else:
            if change is not None:
                yield change


def _change(connection: PgConnection, table: MirroredTable, note: Note) -> TieredTableChanged | None:
    decision = decide_from_note(connection, table, note)
    if decision.action in (Action.NOTHING, Action.WAIT):
        # Types that do not exist any more belong to columns that are about to be gone.
        return None
    if decision.action in (Action.FAIL, Action.DROPPED):
        dropped = decision.action is Action.DROPPED
        reason = decision.reason if dropped else about(str(table.name), decision.reason)
        return TieredTableChanged(table, failure=Failure(table, reason, dropped))
    change = TableChange(decision.table, table.start_lsn, 0, decision.reason, fills=decision.action is Action.FILL)
    return TieredTableChanged(table, change=change)


def decide_from_note(connection: PgConnection, table: MirroredTable, note: Note) -> SchemaChangeDecision:
    """What to do about a table after a note. Queries the database for the types that the note names."""
    try:
        described = describe_note(connection, note)
        return decide(table, note, described, defaults_in_metadata=wants_defaults(connection, table))
    except INVALID_NOTE_ERRORS:
        # Either the catalogs are ahead of the stream and a type no longer exists: a later note describes the table
        # without it. Or another program emitted the message. It must neither end the pump nor be trusted: the pump's
        # own next note describes the table.
        return SchemaChangeDecision(
            Action.WAIT, table, "one of its types does not exist any more, or the note about it was not the pump's"
        )
