"""What model tables held at any WAL position, whoever wrote to them: the oracle of reads at a frontier."""

from __future__ import annotations

from typing import Any

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Row, normalised
from tests.support.history_oracle import CommitLog

_AUDIT = """
CREATE TABLE audit.model_changes (
    seq bigserial, xid xid8 DEFAULT pg_current_xact_id(), model text, at bigint, id bigint, n int, v text,
    gone boolean);
CREATE FUNCTION audit.model_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO audit.model_changes (model, at, id, gone) VALUES (TG_TABLE_NAME, OLD.at, OLD.id, true);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO audit.model_changes (model, at, id, n, v, gone)
    VALUES (TG_TABLE_NAME, NEW.at, NEW.id, NEW.n, NEW.v, false);
  END IF;
  RETURN NULL; END $$;
CREATE FUNCTION audit.model_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_logical_emit_message(true, 'oracle', pg_current_xact_id()::text); RETURN NULL; END $$;
"""


class ModelHistory:
    """Contents of tables (at bigint, id bigint, n int, v text) with the key (at, id), after each transaction. Further
    columns are left out. The database has the schema `audit`.

    Triggers record each change with its transaction, and the server itself says where transactions end.
    """

    def __init__(self, database: Database, slot: str) -> None:
        self._database = database
        self._log = CommitLog(database, slot)
        self._changes: dict[str, list[tuple[int, Row, Row | None]]] = {}
        """By model: end of the transaction, key, and the row that it has left there."""
        self._replayed: dict[str, tuple[int, dict[Row, Row]]] = {}
        """By model: how many changes are applied, and what that has led to."""
        with database.session() as connection:
            connection.execute(_AUDIT)

    def watch(self, model: str) -> None:
        """Records the changes of a table that is empty."""
        with self._database.session() as connection:
            connection.execute(
                f"CREATE TRIGGER change AFTER INSERT OR UPDATE OR DELETE ON {model} FOR EACH ROW"
                f" EXECUTE FUNCTION audit.model_change();"
                f"CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE ON {model} FOR EACH STATEMENT"
                " EXECUTE FUNCTION audit.model_changed()".encode()
            )
        self._changes[model] = []

    def at(self, frontier: int, model: str) -> list[Row]:
        """The rows after the last transaction that ends at or below the frontier, normalised."""
        self._refresh()
        applied, rows = self._replayed.get(model, (0, {}))
        changes = self._changes[model]
        if applied and changes[applied - 1][0] > frontier:
            applied, rows = 0, {}
        while applied < len(changes) and changes[applied][0] <= frontier:
            _, key, row = changes[applied]
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
            applied += 1
        self._replayed[model] = applied, rows
        return normalised(list(rows.values()))

    def _refresh(self) -> None:
        ends = self._log.ends()
        if not ends:
            return
        by_transaction: dict[int, list[tuple[Any, ...]]] = {}
        for xid, *change in self._database.rows(
            "SELECT xid::text::bigint, model, at, id, n, v, gone FROM audit.model_changes"
            " WHERE xid::text::bigint = ANY (%s) ORDER BY seq",
            (list(ends),),
        ):
            by_transaction.setdefault(xid, []).append(tuple(change))
        for xid, end in sorted(ends.items(), key=lambda item: item[1]):
            for model, at, id_, n, v, gone in by_transaction.get(xid, ()):
                self._changes[model].append((end, (at, id_), None if gone else (at, id_, n, v)))
