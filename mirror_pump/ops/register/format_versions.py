"""Which Iceberg format version a mirrored table's lake table has: what users may choose, what needs it, and the way
back."""

from __future__ import annotations

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.model import MirroredTable
from mirror_pump.settings.policy import FORMAT_VERSION_KEY
from mirror_pump.source.catalog.layout import is_copied_again
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.column_choices import variant_columns
from mirror_pump.source.relations.description import RelationDescription


def parse_format_version(text: str) -> int:
    """Raises UsageError for a version that the mirror does not write."""
    versions = [str(FORMAT_VERSION), str(VECTOR_VERSION)]
    if text not in versions:
        raise UsageError(f"the format version of mirrored tables is {' or '.join(versions)}, not {text!r}")
    return int(text)


def refuse_downgrade(table: MirroredTable, version: int) -> None:
    """Raise TableError if the lake table has a later format version than this one."""
    if table.format_version > version:
        raise TableError(
            f"the lake table of {table.name} has format version {table.format_version}: there is no way back but a copy"
            " of its rows",
            f"`mirror-pump unregister {table.name.shell}`, then `mirror-pump register {table.name.shell}"
            f" --format-version {version}`: it is copied again",
        )


def refuse_upgrade(connection: PgConnection, table: MirroredTable, version: int) -> None:
    """Raise TableError if the lake table cannot get this later format version now."""
    if is_copied_again(connection, table.table_id):
        raise TableError(
            f"{table.name} is being copied again, on metadata of its own",
            f"when `mirror-pump status` shows it live: mirror-pump policy set {table.name.shell} {FORMAT_VERSION_KEY}"
            f" {version}",
        )


def refuse_variants(relation: RelationDescription, format_version: int, *, sheds: bool) -> None:
    """Raises TableError if columns are to be variants in a lake table of this format version that has none, or of a
    table that sheds rows: readers unite such a table's heap with its lake, which would need variants of both."""
    variants = variant_columns(relation.columns)
    if not variants:
        return
    if format_version < VECTOR_VERSION:
        raise TableError(
            f"{relation.name}: column {variants[0]} cannot be a variant in a lake table of Iceberg's format version"
            f" {format_version}",
            f"register it with --format-version {VECTOR_VERSION}, or keep string",
        )
    if sheds:
        raise TableError(
            f"{relation.name}: column {variants[0]} cannot be a variant in a table whose rows leave the heap: reads"
            " unite both, and other engines do not print documents as PostgreSQL does",
            "keep string, or leave out --heap-retention and --mode tiered",
        )
