"""Which Iceberg format version a mirrored table's lake table has: what users may choose, and the way back."""

from __future__ import annotations

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.format.data_files import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.model import MirroredTable


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
            f"unregister {table.name}, and register it with --format-version {version}: it is copied again",
        )
