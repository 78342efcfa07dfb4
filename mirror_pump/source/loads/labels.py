"""Labels of loads (modak.load_labels): a label commits with its rows, and its result is returned ever after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import TableError, one_line_of
from mirror_pump.source.connect import PgConnection, limited
from mirror_pump.source.loads.load_target import LoadTarget
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("loads")

KEPT_DAYS = 30.0
"""Days that a label is kept unless the table's policy says otherwise (load_label_days)."""

_RECORDED = f"SELECT {SCHEMA}.recorded_load(%s::bigint::oid::regclass, %s, %s)"
_BEGIN = f"SELECT {SCHEMA}.begin_load(%s::bigint::oid::regclass, %s, %s)"
_FINISH = f"SELECT {SCHEMA}.finish_load(%s::bigint::oid::regclass, %s, %s)"
_FAIL = f"SELECT {SCHEMA}.fail_load(%s::bigint::oid::regclass, %s, %s)"

Recorded = dict[str, Any]
"""The result of a load, as it was given to `finish`, and `loaded_at`."""


class LabelTaken(TableError):
    """Another load was committed under the label."""


class LabelBusy(TableError):
    """Another client is loading under the label at this moment."""


def recorded(
    connection: PgConnection, target: LoadTarget, label: str, content: Mapping[str, Any] | None = None
) -> Recorded | None:
    """The result that was committed under the label, by a load of whatever content if none is given; None if there is
    no result. Raises LabelTaken, TableError for a table that is not registered, psycopg.Error."""
    return _ask(connection, _RECORDED, target, label, content)


def begin(connection: PgConnection, target: LoadTarget, label: str, content: Mapping[str, Any]) -> Recorded | None:
    """Claim the label for the open transaction, or return the result that was committed under it. Waits, subject to
    lock_timeout, for another client that has claimed it. Raises LabelBusy and the errors of `recorded`."""
    try:
        return _ask(connection, _BEGIN, target, label, content)
    except psycopg.errors.LockNotAvailable as error:
        raise LabelBusy(
            f"{target.name}: another client is loading under the label {label!r}",
            "ask again later with the same label: you get the result",
        ) from error


def finish(connection: PgConnection, target: LoadTarget, label: str, outcome: Mapping[str, Any]) -> None:
    """Record the result, as the last thing of the open transaction. Raises psycopg.Error."""
    connection.execute(_FINISH, (target.table_id, label, Jsonb(dict(outcome))))


def fail(connection: PgConnection, target: LoadTarget, label: str, outcome: Mapping[str, Any]) -> None:
    """Record why a load was refused. A label that was committed stays as it is, and so does one that another client
    has claimed. Raises psycopg.Error."""
    with limited(connection):
        connection.execute(_FAIL, (target.table_id, label, Jsonb(dict(outcome))))


def sweep_labels(connection: PgConnection, slot: str) -> None:
    """Forget labels that are older than their table's policy says, and the journal's lines of old loads. Raises
    psycopg.Error."""
    connection.execute(_SQL["sweep_labels"], {"slot": slot, "days": KEPT_DAYS})
    connection.execute(_SQL["prune"], {"slot": slot})


def _ask(
    connection: PgConnection, query: str, target: LoadTarget, label: str, content: Mapping[str, Any] | None
) -> Recorded | None:
    given = None if content is None else Jsonb(dict(content))
    try:
        row = connection.execute(query.encode(), (target.table_id, label, given)).fetchone()
    except psycopg.errors.UndefinedTable as error:
        raise TableError(
            f"{target.name} is not registered",
            f"`mirror-pump register {target.name.shell}`: loads are of registered tables",
        ) from error
    except psycopg.errors.UniqueViolation as error:
        detail = "" if error.diag.message_detail is None else f": {one_line_of(error.diag.message_detail)}"
        raise LabelTaken(
            f"{error.diag.message_primary}{detail}", "give each load a label of its own; nothing was changed"
        ) from error
    assert row is not None
    record: Recorded | None = row[0]
    return record
