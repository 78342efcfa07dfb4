"""A file's description survives the catalog."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.file_json import file_from_json, file_to_json
from mirror_pump.lake.format.puffin import BlobPlace

_SINCE_FORMAT_3 = {"spec_id", "blob", "first_row_id"}
FILE = WrittenFile(
    content=FileContent.POSITION_DELETES,
    path="s3://lake/t/data/1.parquet",
    record_count=7,
    size_bytes=900,
    column_sizes={1: 40, 2: 50},
    value_counts={1: 7, 2: 7},
    null_counts={1: 0, 2: 3},
    lower_bounds={1: b"\x00\xff", 2: b""},
    upper_bounds={1: b"\x80" * 16},
    equality_ids=(1, 2),
    split_offsets=(4, 500),
    nan_counts={2: 1},
    referenced_data_file="s3://lake/t/data/0.parquet",
    spec_id=3,
    blob=BlobPlace(4, 60),
    first_row_id=2**40,
)


def test_a_file_survives_json() -> None:
    assert file_from_json(json.loads(json.dumps(file_to_json(FILE)))) == FILE
    plain = replace(FILE, content=FileContent.DATA, referenced_data_file=None, equality_ids=(), split_offsets=())
    assert file_from_json(json.loads(json.dumps(file_to_json(plain)))) == plain
    older = replace(plain, spec_id=None, blob=None, first_row_id=None)
    stored = {key: value for key, value in file_to_json(older).items() if key not in _SINCE_FORMAT_3}
    assert file_from_json(stored) == older, "as a release before stored it"


def test_no_field_is_forgotten() -> None:
    assert set(file_to_json(FILE)) == {field.name for field in fields(WrittenFile)}
