"""Reading many files with one schema leaves nothing behind, although pyiceberg keeps every reader that it creates."""

from __future__ import annotations

from pyiceberg.types import LongType, NestedField, StructType
from pyiceberg.utils.singleton import Singleton

from mirror_pump.lake.avro.container_files import container, raw_records
from mirror_pump.lake.manifests.manifest_entries import Formats, stored_entries


def test_readers_are_made_once() -> None:
    partition = StructType(NestedField(1000, "id", LongType(), required=False))
    schema = Formats(partition).schema
    content = container(schema, {}, [])

    def read() -> int:
        assert stored_entries(content, 1, 1) == (partition, [])
        assert raw_records(content, schema) == (0, b"")
        return len(Singleton._instances)

    first = read()
    assert [read() for _ in range(20)] == [first] * 20
