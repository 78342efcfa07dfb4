"""The registrations to which the stream's changes belong, at the position up to which the stream was fed.

The catalog alone does not tell them, because publishes are behind the stream: a table that changed in the stream gets
its new definition here first, and a registration that failed in the stream counts no more.
"""

from __future__ import annotations

from collections.abc import Callable

from decoders.messages import RelationMessage
from mirror_pump.model import Lsn, MirroredTable


class StreamTables:
    """The tables at one position of the stream."""

    def __init__(self, lookup: Callable[[int], MirroredTable | None]) -> None:
        """`lookup(relation_id)` returns the registration in the catalog, or None."""
        self._lookup = lookup
        self.active: dict[int, MirroredTable] = {}
        """The tables whose changes are applied, by relation ID."""
        self._changed: dict[int, MirroredTable] = {}
        """The current state of tables that changed in the stream."""
        self._failed: dict[int, Lsn] = {}
        """The start LSN of failed registrations. They must not become active again."""
        self._sent: dict[int, RelationMessage] = {}
        """The last Relation message of each relation. The server sends it again only after a change of the relation
        itself, not after a table that was awaiting its description has been described."""
        self._saved = self.active, self._changed, self._failed

    def save(self) -> None:
        """Remember the tables as they are now, for `restore`."""
        self._saved = dict(self.active), dict(self._changed), dict(self._failed)

    def restore(self) -> None:
        """Return to the tables of the last `save`."""
        self.active, self._changed, self._failed = self._saved

    def shown_table(self, relation_id: int) -> MirroredTable | None:
        """The table as the stream has shown it so far, even if it is not active yet. None if it has not shown it."""
        # A table that changed before the server described it is not active yet.
        return self.active.get(relation_id) or self._changed.get(relation_id)

    def registered(self, relation_id: int, final_lsn: int) -> MirroredTable | None:
        """The registration to which changes belong in the transaction whose commit is at `final_lsn`."""
        table = self._lookup(relation_id)
        if table is None or table.start_lsn <= self._failed.get(relation_id, -1):
            return None
        changed = self._changed.get(relation_id)
        if changed is not None and changed.start_lsn >= table.start_lsn:
            return changed
        # A change from before the current registration is ignored. Registering changes the publication, so the server
        # sends the relation again before the first change that counts.
        return None if final_lsn < table.start_lsn else table

    def activate(self, table: MirroredTable) -> None:
        """Apply the table's changes from here on."""
        self.active = {**self.active, table.table_id: table}

    def ignore(self, relation_id: int) -> None:
        """Apply no changes of the table from here on."""
        self.active = {other_id: table for other_id, table in self.active.items() if other_id != relation_id}

    def replace(self, table: MirroredTable) -> None:
        """Use a new state of the table from here on."""
        self._changed[table.table_id] = table
        if table.table_id in self.active:
            self.activate(table)

    def fail(self, table: MirroredTable) -> None:
        """Never activate this registration again."""
        self._failed[table.table_id] = table.start_lsn

    def forget_sent(self, relation_id: int) -> None:
        """The server describes the relation again."""
        self._sent.pop(relation_id, None)

    def set_sent(self, relation: RelationMessage) -> None:
        """The server has described the relation."""
        self._sent[relation.relation_id] = relation

    def was_sent(self, relation_id: int) -> bool:
        """Whether the server has described the relation in this stream. It does so before the first change."""
        return relation_id in self._sent

    def was_sent_as(self, table: MirroredTable) -> bool:
        """Whether the last Relation message matches the table."""
        sent = self._sent.get(table.table_id)
        return sent is not None and not difference_from(table, sent)


_FULL = "f"
"""The pg_class.relreplident with which the server sends the whole old row, whatever the key."""


def difference_from(table: MirroredTable, relation: RelationMessage) -> str:
    """What differs between the table as registered and as the server now sends it. Empty if nothing differs.

    The replica identity matters as much as the columns: the server sends an old row only when columns of the identity
    change, so a key that is no longer the identity could change unnoticed.
    """
    registered = [(column.name, column.type_oid, column.type_modifier) for column in table.columns]
    left_out = set() if table.column_list else {column.name for column in table.excluded}
    sent = [
        (column.name, column.type_oid, column.type_modifier)
        for column in relation.columns
        if column.name not in left_out
    ]
    names, now = {name for name, *_ in registered}, {column.name for column in relation.columns}
    # Excluded columns are identified by their position in the rows, so they have to be present.
    if registered == sent and left_out <= now:
        identity = {column.name for column in relation.columns if column.is_key}
        if table.append_only and (identity or relation.replica_identity == _FULL):
            return "it has a replica identity now, and may be updated"
        if table.whole_rows:
            return "" if relation.replica_identity == _FULL else "its replica identity is not FULL any more"
        # Without any identity the server refuses updates and deletes. Inserts look the same as before.
        if relation.replica_identity == _FULL or not identity or identity == set(table.key):
            return ""
        return f"its replica identity is ({', '.join(sorted(identity))}), not ({', '.join(table.key)}) any more"
    expected = [*(name for name, *_ in registered), *sorted(left_out)]
    parts = [f"column {name} is gone" for name in expected if name not in now]
    parts += [f"column {name} is new" for name, *_ in sent if name not in names]
    parts += [f"column {item[0]} has another type" for item in sent if item[0] in names and item not in registered]
    return ", ".join(parts) or "their order changed"
