"""Looks for values in everything that files of a warehouse have: rows, bounds, footers, blobs, documents."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mirror_pump.lake.manifests.entry_reader import EntryReader


def files_with(root: Path, values: Collection[Any]) -> set[str]:
    """The names of the files below a directory, of any program, that have one of the values: among those that
    Parquet and Avro files hold, or their bytes and texts (of bytes and texts the beginning is enough)."""
    plain = [value.encode() if isinstance(value, str) else value for value in values if isinstance(value, str | bytes)]
    files = set()
    for path in root.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        has_bytes = any(value in content for value in plain)
        if has_bytes or any(_is_one(value, values, plain) for value in _values(path, content)):
            files.add(str(path.relative_to(root)))
    return files


def _is_one(value: Any, values: Collection[Any], plain: Collection[bytes]) -> bool:
    if isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        return any(one in content for one in plain)
    return not isinstance(value, bool) and value in values


def _values(path: Path, content: bytes) -> Iterator[Any]:
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            for column in range(file.metadata.num_columns):
                statistics = file.metadata.row_group(group).column(column).statistics
                if statistics is not None and statistics.has_min_max:
                    yield from (statistics.min, statistics.max)
        yield from _flat(file.read().to_pylist())
    elif path.suffix == ".avro":
        yield from _flat(list(EntryReader(content, None).rows()))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from _flat(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value
