"""Decides about a table after a note about it."""

from __future__ import annotations

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.schema.decisions import Action, SchemaChangeDecision, decide
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.change_notes import INVALID_NOTE_ERRORS, Note, describe_note


def decide_from_note(connection: PgConnection, table: MirroredTable, note: Note) -> SchemaChangeDecision:
    """What to do about a table after a note. Queries the database for the types that the note names."""
    try:
        return decide(table, note, describe_note(connection, note))
    except INVALID_NOTE_ERRORS:
        # Either the catalogs are ahead of the stream and a type no longer exists: a later note describes the table
        # without it. Or another program emitted the message. It must neither end the pump nor be trusted: the pump's
        # own next note describes the table.
        return SchemaChangeDecision(
            Action.WAIT, table, "one of its types does not exist any more, or the note about it was not the pump's"
        )
