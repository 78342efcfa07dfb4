"""`mirror-pump lake`: Iceberg tables of catalogs and of plain directories, with no mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.catalogs import OptionalCatalog, location_of, metadata_of
from mirror_pump.cli.arguments.options import STORAGE, AsJson, command
from mirror_pump.cli.commands import lake_tables
from mirror_pump.cli.terminal.output import bytes_text, count_text, say, write_json
from mirror_pump.lake.storage import StorageOptions, storage_of
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.tables.read_plan.planned_files import ReadPlan

TablePath = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="With --catalog, a name; else the location of a metadata file or of a table's directory"
    ),
]
OfSnapshot = Annotated[
    int | None, typer.Option("--snapshot", metavar="ID", help=r"Snapshot \[the current one]", show_default=False)
]


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Create Iceberg tables, commit files to them, and look into those of any engine, without a mirror.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(group, name="lake")
    lake_tables.add(group)
    _add_info(group)
    _add_history(group)
    _add_plan(group)
    _add_files(group)
    _add_inspect_manifest(group)


def _add_info(group: typer.Typer) -> None:
    @command(group, "info", lake_tables.FIELDS, needs_dsn=False)
    def info(settings: Settings, table: TablePath, catalog: OptionalCatalog = None, json: AsJson = False) -> None:
        """Show a table's schema, partitioning and current snapshot."""
        lake_tables.show_table(*metadata_of(table, catalog, settings), json=json)


def _add_history(group: typer.Typer) -> None:
    @command(group, "history", lake_tables.FIELDS, needs_dsn=False)
    def history(settings: Settings, table: TablePath, catalog: OptionalCatalog = None, json: AsJson = False) -> None:
        """List the snapshots, from the current one back along their parents."""
        from mirror_pump.lake.document.metadata_files import read_any_version
        from mirror_pump.tables.metadata.table_documents import history_document, snapshot_line

        snapshots = history_document(read_any_version(*metadata_of(table, catalog, settings)))
        if json:
            write_json({"snapshots": snapshots})
            return
        for snapshot in snapshots:
            say(snapshot_line(snapshot))


def _add_plan(group: typer.Typer) -> None:
    @command(group, "plan", lake_tables.FIELDS, needs_dsn=False)
    def plan(
        settings: Settings,
        table: TablePath,
        catalog: OptionalCatalog = None,
        where: Annotated[
            str | None,
            typer.Option("--where", metavar="PREDICATE", help="Such as \"day >= '2026-01-01' and region = 'eu'\""),
        ] = None,
        snapshot: OfSnapshot = None,
        json: AsJson = False,
    ) -> None:
        """Show which files a query with a predicate has to read, and how many manifests that takes."""
        from mirror_pump.tables.read_plan.planned_files import plan_document

        planned = _planned(*metadata_of(table, catalog, settings), where, snapshot)
        if json:
            write_json(plan_document(planned))
            return
        for path in planned.paths:
            say(path)
        counts = planned.counts
        say(
            f"{count_text(len(planned.files))} files, {count_text(planned.records)} rows, "
            f"{bytes_text(planned.size_bytes)}; {counts.manifests_opened} of {counts.manifests} manifests opened, "
            f"{count_text(counts.entries_seen)} files looked at"
        )


def _add_files(group: typer.Typer) -> None:
    @command(group, "files", lake_tables.FIELDS, needs_dsn=False)
    def files(
        settings: Settings,
        table: TablePath,
        catalog: OptionalCatalog = None,
        snapshot: OfSnapshot = None,
        json: AsJson = False,
    ) -> None:
        """List the data files of a snapshot, with the delete files that apply to them."""
        from mirror_pump.tables.read_plan.planned_files import plan_document

        planned = _planned(*metadata_of(table, catalog, settings), None, snapshot)
        if json:
            document = plan_document(planned)
            write_json({key: document[key] for key in ("snapshot_id", "records", "size_bytes", "files")})
            return
        for file in planned.files:
            deletes = len(file.position_deletes) + len(file.equality_deletes)
            say(
                f"{file.path} {file.records} rows {bytes_text(file.size_bytes)}"
                + (f" {deletes} deletes" if deletes else "")
            )


def _add_inspect_manifest(group: typer.Typer) -> None:
    @command(group, "inspect-manifest", STORAGE, needs_dsn=False)
    def inspect_manifest(
        settings: Settings,
        manifest: Annotated[str, typer.Argument(metavar="MANIFEST", help="URI or path of a manifest")],
        json: AsJson = False,
    ) -> None:
        """Print the entries of a manifest, those of removed files too."""
        from mirror_pump.tables.metadata.table_documents import manifest_document

        document = manifest_document(location_of(manifest), storage_of(settings, location_of(manifest)))
        if json:
            write_json(document)
            return
        for entry in document["entries"]:
            say(f"{entry['status']} {entry['content']} {entry['path']} {entry['records']} rows {entry['partition']}")


def _planned(location: str, storage: StorageOptions, where: str | None, snapshot: int | None) -> ReadPlan:
    from pyiceberg.expressions import AlwaysTrue

    from mirror_pump.lake.document.metadata_files import read_any_version
    from mirror_pump.tables.read_plan.plan import read_plan

    metadata = read_any_version(location, storage)
    return read_plan(metadata, storage, AlwaysTrue() if where is None else where, snapshot)
