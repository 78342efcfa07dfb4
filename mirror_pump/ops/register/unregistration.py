"""Takes tables out of the mirror, in one transaction each, while the pump runs or not."""

from __future__ import annotations

from psycopg import errors as pg_errors

from mirror_pump.config import Settings
from mirror_pump.errors import MirrorPumpError, TableError, UsageError
from mirror_pump.lake.commit.catalog import delete_pointer
from mirror_pump.lake.storage import StorageOptions, delete_tree
from mirror_pump.model import MirroredTable, TableId, TableName
from mirror_pump.ops.register.table_locks import limit_lock, with_lock_retries
from mirror_pump.source.catalog.tables import delete_table, load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.retention.retention_plan import leave_partitions, sheds
from mirror_pump.source.stream.slot import published_tables, remove_from_publication
from sql import queries

_PUBLISH_SQL = queries("publish")
_SHAPE_SQL = queries("shape")


def unregister(settings: Settings, name: str, drop_lake: bool, keep_lake: bool = False) -> str:
    """Take a table out of the mirror; with `drop_lake` its Iceberg table and files too. Returns what was done.

    A table that was dropped in Postgres is found under the name that it was registered with. One that has rows nowhere
    but in the lake needs either `drop_lake` or `keep_lake`: TableError.
    """
    with connect(settings.require_dsn(), autocommit=True) as connection:
        table = _registered_table(connection, name)
        if drop_lake and keep_lake:
            raise UsageError("--drop-lake and --keep-lake exclude each other")
        if sheds(connection, table) and not (drop_lake or keep_lake):
            raise TableError(
                f"{table.name} has rows that its heap does not hold any more: the lake has the only copy",
                "Say what is to become of them: --keep-lake or --drop-lake. Corrections that are not folded are lost.",
            )

        def take_out() -> None:
            with source_errors(f"unregistering {table.name}"), connection.transaction():
                limit_lock(connection, settings)
                # By its present name: it may have been renamed since, and its former name be another table's.
                published = published_tables(connection, settings.publication).get(table.table_id)
                if published is not None:
                    remove_from_publication(connection, settings.publication, published)
                # Whether it is published or not: a trigger that is left would fail for want of the table's row.
                leave_partitions(connection, table)
                connection.execute(_SHAPE_SQL["unwatch"], {"table_id": table.table_id})
                # Publishes and plans of copies hold this row too, so that none of them loses the table halfway.
                connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": settings.slot})
                present = load_table(connection, table.table_id)
                if present is None or present.location != table.location:
                    raise TableError(f"{table.name} was unregistered by somebody else meanwhile")
                delete_table(connection, table.table_id)
                if drop_lake:
                    # As the catalog names it now: a publish before us may have renamed it.
                    delete_pointer(connection, present.name.schema, present.lake_table)

        with_lock_retries(settings, table.name, take_out)
    if not drop_lake:
        return f"{table.name} is no longer mirrored; its lake table stays as of its last F at {table.location}"
    delete_tree(table.location, StorageOptions(settings.storage_properties, settings.storage_fsync))
    return f"{table.name} is no longer mirrored; its lake table and its files were removed"


def _registered_table(connection: PgConnection, name: str) -> MirroredTable:
    """The registration that `name` means: of the relation of that name, else of one that had it and was dropped."""
    unknown: MirrorPumpError = TableError(
        f"{name} is not registered", "`mirror-pump status` lists the tables that are."
    )
    table = None
    try:
        table_name, table_id = resolve_name(connection, name)
    except MirrorPumpError as error:
        unknown = error
        table = _formerly_registered(connection, name)
    else:
        table = load_table(connection, table_id) or registered_as(connection, table_name)
    if table is None:
        raise unknown
    return table


def registered_as(connection: PgConnection, name: TableName) -> MirroredTable | None:
    """The table that was registered under this name, whatever it is called now."""
    with source_errors("looking for a registered table"):
        row = connection.execute(
            "SELECT table_id FROM modak.tables WHERE schema_name = %s AND table_name = %s", (name.schema, name.name)
        ).fetchone()
    return None if row is None else load_table(connection, TableId(row[0]))


def _formerly_registered(connection: PgConnection, text: str) -> MirroredTable | None:
    """The table that was registered under the name `text`, as SQL or without its quotes, with or without its schema."""
    with source_errors("looking for a registered table"):
        try:
            with connection.transaction():
                row = connection.execute("SELECT parse_ident(%s)", (text,)).fetchone()
            parts = row[0] if row is not None else []
        except pg_errors.InvalidParameterValue:
            parts = []
        found = connection.execute(
            "SELECT table_id FROM modak.tables, LATERAL (VALUES"
            " (1, ARRAY[schema_name, table_name] = %(parts)s::text[] OR ARRAY[table_name] = %(parts)s::text[]),"
            " (2, schema_name || '.' || table_name = %(text)s), (3, table_name = %(text)s)) AS way (preference, fits)"
            " WHERE fits ORDER BY preference LIMIT 1",
            {"parts": parts, "text": text},
        ).fetchone()
    return None if found is None else load_table(connection, TableId(found[0]))
