"""Reading many files with one schema leaves nothing behind, although pyiceberg keeps every reader that it creates."""

from __future__ import annotations

from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.utils.singleton import Singleton

from mirror_pump.lake.metadata.avro import container, raw_records, read_records, schema_json


def test_readers_are_made_once() -> None:
    schema = schema_json(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file")
    content = container(schema, {}, [])

    def read() -> int:
        assert read_records(content, lambda own: own)[1] == []
        assert raw_records(content, schema) == (0, b"")
        return len(Singleton._instances)

    first = read()
    assert [read() for _ in range(20)] == [first] * 20
