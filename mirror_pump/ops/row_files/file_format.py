"""The formats of files of rows, and what tells them: names, and first bytes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath


class FileFormat(StrEnum):
    """The formats of input files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


_SUFFIXES = {
    ".parquet": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
}
_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".lz4")
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bz2"), (b"\x04\x22\x4d\x18", "lz4"))
"""How compressed files begin. Names are not trusted: a download may have been decompressed on its way. No CSV, JSON or
Parquet file begins with these."""
PARQUET_MAGIC = b"PAR1"
MAGIC_BYTES = 4
"""Bytes that tell what a file is."""


def format_of(name: str) -> FileFormat | None:
    """The format that a file's name tells, with or without the ending of a compression; None if it tells none."""
    path = PurePosixPath(name.lower())
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return _SUFFIXES.get(path.suffix)


def compression_of(beginning: bytes) -> str | None:
    """Arrow's name of the compression that the first MAGIC_BYTES of a file tell; None if it has none."""
    return next((kind for magic, kind in _MAGIC if beginning.startswith(magic)), None)
