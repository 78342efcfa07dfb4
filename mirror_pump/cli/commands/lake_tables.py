"""The commands of `mirror-pump lake` that change tables: init, commit and gc."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from mirror_pump.cli.arguments.catalogs import RequiredCatalog, location_of, open_catalog
from mirror_pump.cli.arguments.options import SOURCE, STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import bytes_text, count_text, say, write_json
from mirror_pump.errors import UsageError
from mirror_pump.lake.storage import StorageOptions, storage_of
from mirror_pump.runtime.durations import seconds_of
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

FIELDS = (*SOURCE, *STORAGE)
"""Options of all commands that open a catalog: one of them is a database."""

CatalogTable = Annotated[str, typer.Argument(metavar="TABLE", help="Name in the catalog, such as sales.orders")]
_LINES = 'write a file\'s name in each line, or JSON such as {"add": "a.parquet"} and {"remove": "b.parquet"}'


def add(group: typer.Typer) -> None:
    _add_init(group)
    _add_commit(group)
    _add_gc(group)


def _add_init(group: typer.Typer) -> None:
    @command(group, "init", FIELDS, needs_dsn=False)
    def init(
        settings: Settings,
        table: CatalogTable,
        catalog: RequiredCatalog,
        column: Annotated[
            list[str] | None, typer.Option("--column", metavar="TEXT", help="Such as 'id long not null'; repeatable")
        ] = None,
        like: Annotated[
            str | None, typer.Option("--like", metavar="FILE", help="A Parquet file that has the columns")
        ] = None,
        partition: Annotated[
            list[str] | None,
            typer.Option("--partition", metavar="FIELD", help="region, day(created_at) or bucket[16](id); repeatable"),
        ] = None,
        property_: Annotated[
            list[str] | None,
            typer.Option("--property", metavar="KEY=VALUE", help="Table property, or format-version=3; repeatable"),
        ] = None,
        transactions: Annotated[
            bool,
            typer.Option("--transactions", help="Give a new path catalog a log, for commits to several tables at once"),
        ] = False,
        json: AsJson = False,
    ) -> None:
        """Create a table with one empty snapshot."""
        if bool(column) == (like is not None):
            raise UsageError("the table needs columns", "give either --column for each, or --like")
        _create(settings, table, catalog, _columns(column, like, settings), partition, property_, transactions, json)


def _create(
    settings: Settings,
    name: str,
    catalog: str,
    schema: Schema | pa.Schema,
    partition: Sequence[str] | None,
    properties: Sequence[str] | None,
    transactions: bool,
    json: bool,
) -> None:
    import pyarrow as pa

    from mirror_pump.tables.table.column_texts import partition_spec_of
    from mirror_pump.tables.table.table import Table

    names = schema.names if isinstance(schema, pa.Schema) else [field.name for field in schema.fields]
    spec = partition_spec_of(partition or (), names)
    pairs = _pairs(properties or ())
    opened = open_catalog(catalog, settings, create=True, transactions=transactions)
    table = Table.create(opened, name, schema, spec, pairs)
    show_table(table.metadata_location, table.storage, json=json)


def show_table(metadata_location: str, storage: StorageOptions, *, json: bool) -> None:
    """Prints a table's schema, partitioning and current snapshot."""
    from mirror_pump.tables.metadata.table_documents import table_document, table_lines

    document = table_document(metadata_location, storage)
    if json:
        write_json(document)
        return
    for line in table_lines(document):
        say(line)


def _columns(texts: Sequence[str] | None, like: str | None, settings: Settings) -> Schema | pa.Schema:
    if like is None:
        from mirror_pump.tables.table.column_texts import schema_of

        return schema_of(texts or ())
    from mirror_pump.lake.format.damaged_files import open_parquet

    location = location_of(like)
    with open_parquet(location, storage_of(settings, location)) as file:
        return file.schema_arrow


def _pairs(texts: Iterable[str]) -> Mapping[str, str]:
    properties = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UsageError(f"{text!r} is not a property", "write it as KEY=VALUE")
        properties[key] = value
    return properties


def _add_commit(group: typer.Typer) -> None:
    @command(group, "commit", FIELDS, needs_dsn=False)
    def commit(
        settings: Settings,
        table: CatalogTable,
        catalog: RequiredCatalog,
        files: Annotated[
            list[str] | None, typer.Argument(metavar="[FILE]...", help=r"Parquet files to add \[those of stdin]")
        ] = None,
        remove: Annotated[
            list[str] | None, typer.Option("--remove", metavar="FILE", help="A data file to remove; repeatable")
        ] = None,
        json: AsJson = False,
    ) -> None:
        """Add data files to a table, and remove others, in one new snapshot.

        The files are in the table's directory. Without any, stdin names them: one in each line, or JSON lines with
        `add` or `remove`. If anything is wrong with one file, nothing is changed.
        """
        added, removed = (files or [], remove or []) if files or remove else _read_changes(sys.stdin)
        if not added and not removed:
            raise UsageError("no file is named", _LINES)
        _commit(settings, table, catalog, added, removed, json)


def _commit(
    settings: Settings, name: str, catalog: str, added: Sequence[str], removed: Sequence[str], json: bool
) -> None:
    from mirror_pump.tables.metadata.table_documents import snapshot_document, snapshot_line
    from mirror_pump.tables.table.table import Table

    table = Table.open(open_catalog(catalog, settings), name)
    snapshot = table.commit_overwrite(removed, added) if removed else table.commit_append(added)
    document = snapshot_document(snapshot)
    if json:
        write_json({"metadata_location": table.metadata_location, "snapshot": document})
    else:
        say(f"{snapshot_line(document)}: {count_text(len(added))} files added, {count_text(len(removed))} removed")


def _read_changes(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """The files to add and those to remove. Raises UsageError."""
    paths: dict[str, list[str]] = {"add": [], "remove": []}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        for key, path in _line(text, number).items():
            paths[key].append(path)
    return paths["add"], paths["remove"]


def _line(text: str, number: int) -> Mapping[str, str]:
    if not text.startswith("{"):
        return {"add": text}
    try:
        document: Any = orjson.loads(text)
    except ValueError:
        document = {}
    if not document or not set(document) <= {"add", "remove"} or not all(isinstance(v, str) for v in document.values()):
        raise UsageError(f"line {number} of stdin is not understood: {text[:80]}", _LINES)
    return dict(document)


def _add_gc(group: typer.Typer) -> None:
    @command(group, "gc", FIELDS, needs_dsn=False)
    def gc(
        settings: Settings,
        table: CatalogTable,
        catalog: RequiredCatalog,
        older_than: Annotated[
            str, typer.Option("--older-than", metavar="DURATION", help="Keep files that are younger; at least 1h")
        ] = "3 days",
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Remove the files; without it they are only listed")
        ] = False,
        json: AsJson = False,
    ) -> None:
        """List or remove orphan files: files of a table that no retained snapshot refers to.

        Writers that died leave them, and snapshots that expired. No writer may take longer than --older-than from
        writing a file to committing it. Mirrored tables are for `mirror-pump maintain`.
        """
        from mirror_pump.tables.table.orphan_files import find_orphans, remove_orphans

        grace = seconds_of(older_than, "--older-than")
        files = (remove_orphans if yes else find_orphans)(open_catalog(catalog, settings), table, grace)
        size = sum(file.size_bytes for file in files)
        if json:
            named = [{"path": file.location, "size_bytes": file.size_bytes} for file in files]
            write_json({"removed": yes, "size_bytes": size, "files": named})
            return
        for file in files:
            say(file.location)
        outcome = "removed" if yes else "not removed: give --yes"
        say(f"{count_text(len(files))} orphan files, {bytes_text(size)}, {outcome}")
