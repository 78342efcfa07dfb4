"""Descriptions of written files as JSON, for the catalog: files that are in storage before a publish names them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.puffin import BlobPlace


def file_to_json(file: WrittenFile) -> dict[str, Any]:
    """The JSON object from which `file_from_json` makes the same description."""
    return {
        "content": file.content.value,
        "path": file.path,
        "record_count": file.record_count,
        "size_bytes": file.size_bytes,
        "column_sizes": _keyed(file.column_sizes),
        "value_counts": _keyed(file.value_counts),
        "null_counts": _keyed(file.null_counts),
        "nan_counts": _keyed(file.nan_counts),
        "lower_bounds": _encoded(file.lower_bounds),
        "upper_bounds": _encoded(file.upper_bounds),
        "equality_ids": list(file.equality_ids),
        "split_offsets": list(file.split_offsets),
        "referenced_data_file": file.referenced_data_file,
        "partition": list(file.partition),
        "spec_id": file.spec_id,
        "blob": None if file.blob is None else [file.blob.offset, file.blob.size],
        "first_row_id": file.first_row_id,
    }


def file_from_json(stored: Mapping[str, Any]) -> WrittenFile:
    """The file that `file_to_json` described. Raises KeyError, TypeError or ValueError for anything else."""
    return WrittenFile(
        content=FileContent(stored["content"]),
        path=str(stored["path"]),
        record_count=int(stored["record_count"]),
        size_bytes=int(stored["size_bytes"]),
        column_sizes=_by_field(stored["column_sizes"]),
        value_counts=_by_field(stored["value_counts"]),
        null_counts=_by_field(stored["null_counts"]),
        nan_counts=_by_field(stored["nan_counts"]),
        lower_bounds=_decoded(stored["lower_bounds"]),
        upper_bounds=_decoded(stored["upper_bounds"]),
        equality_ids=tuple(stored["equality_ids"]),
        split_offsets=tuple(stored["split_offsets"]),
        referenced_data_file=stored["referenced_data_file"],
        partition=tuple(stored["partition"]),
        # What a release before format version 3 stored has none of these.
        spec_id=stored.get("spec_id"),
        blob=None if stored.get("blob") is None else BlobPlace(*stored["blob"]),
        first_row_id=stored.get("first_row_id"),
    )


def _keyed(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(field_id): number for field_id, number in numbers.items()}


def _by_field(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(field_id): number for field_id, number in stored.items()}


def _encoded(bounds: Mapping[int, bytes]) -> dict[str, str]:
    return {str(field_id): b64encode(bound).decode() for field_id, bound in bounds.items()}


def _decoded(stored: Mapping[str, str]) -> dict[int, bytes]:
    return {int(field_id): b64decode(bound) for field_id, bound in stored.items()}
