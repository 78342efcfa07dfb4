"""The difference between a table as registered and a relation as the server describes it in the stream."""

from __future__ import annotations

from decoders.messages import RelationMessage
from mirror_pump.model import MirroredTable

_FULL = "f"
"""The pg_class.relreplident with which the server sends the whole old row, whatever the key."""


def difference_from(table: MirroredTable, relation: RelationMessage) -> str:
    """What differs between the table as registered and as the server now sends it. Empty if nothing differs.

    The replica identity matters as much as the columns: the server sends an old row only when columns of the identity
    change, so a key that is no longer the identity could change unnoticed.
    """
    registered = [(column.name, column.type_oid, column.type_modifier) for column in table.columns]
    left_out = {column.name for column in table.excluded}
    sent = [
        (column.name, column.type_oid, column.type_modifier)
        for column in relation.columns
        if column.name not in left_out
    ]
    names, now = {name for name, *_ in registered}, {column.name for column in relation.columns}
    # Excluded columns are identified by their position in the rows, so they have to be present.
    if registered == sent and left_out <= now:
        identity = {column.name for column in relation.columns if column.is_key}
        # Without any identity the server refuses updates and deletes. Inserts look the same as before.
        if relation.replica_identity == _FULL or not identity or identity == set(table.key):
            return ""
        return f"its replica identity is ({', '.join(sorted(identity))}), not ({', '.join(table.key)}) any more"
    expected = [*(name for name, *_ in registered), *sorted(left_out)]
    parts = [f"column {name} is gone" for name in expected if name not in now]
    parts += [f"column {name} is new" for name, *_ in sent if name not in names]
    parts += [f"column {item[0]} has another type" for item in sent if item[0] in names and item not in registered]
    return ", ".join(parts) or "their order changed"
