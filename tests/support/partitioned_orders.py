"""A table whose lake table is partitioned by columns outside of its key, and what must hold for its files."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable

from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.partitioning import partition_key
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.tables.table.partition_values import PartitionColumn, plain_values
from mirror_pump.testing.database import Database
from tests.support.table_wishes import parse_choices

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, created timestamptz, tenant text, code numeric(10,2), n int, big text)",
    "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL, ALTER tenant SET STORAGE EXTERNAL",
    """INSERT INTO orders SELECT g, timestamptz '2026-03-01 00:00Z' + g * interval '5 hours',
       CASE g % 4 WHEN 0 THEN NULL WHEN 1 THEN repeat('large', 800) ELSE 't' || g % 4 END, g % 7 / 4.0, 0,
       repeat(md5(g::text), 100) FROM generate_series(1, 120) g""",
    "UPDATE orders SET created = '9998-12-31 00:00Z' WHERE id = 7",
    "UPDATE orders SET created = '0002-01-01 00:00Z' WHERE id = 8",
    "UPDATE orders SET created = NULL WHERE id % 30 = 0",
)
WITHOUT_INDEX: dict[str, Any] = {"index_memory": 0, "index_disk": 0}
"""Settings of a pump that deletes by key."""


def by(text: str | None, sort_by: str | None = None) -> ColumnChoices:
    """As `--partition-by` and `--sort-by`."""
    return parse_choices([], [], partition_by=text, sort_by=sort_by)


def data_files(location: str) -> set[str]:
    """URIs of the live data files."""
    snapshot = StaticTable.from_metadata(location).current_snapshot()
    assert snapshot is not None
    io = PyArrowFileIO()
    entries = (entry for manifest in snapshot.manifests(io) for entry in manifest.fetch_manifest_entry(io))
    return {entry.data_file.file_path for entry in entries if entry.data_file.content == DataFileContent.DATA}


def unsorted_files(location: str, column: str, former: Collection[str] = ()) -> int:
    """Number of data files, but for `former` ones, whose rows are not in the ascending order of a column, NULL last."""
    table = StaticTable.from_metadata(location)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = 0
    for manifest in snapshot.manifests(PyArrowFileIO()):
        for entry in manifest.fetch_manifest_entry(PyArrowFileIO()):
            if entry.data_file.content == DataFileContent.DATA and entry.data_file.file_path not in former:
                values = pq.read_table(local_path(entry.data_file.file_path)).column(column).to_pylist()
                found += values != sorted(values, key=lambda value: (value is None, value))
    return found


def assert_divided(location: str) -> int:
    """Fails unless each file is in the one partition that its rows, or what it deletes, belong to. Returns the number
    of data files with rows."""
    table = StaticTable.from_metadata(location)
    schema, specs = table.schema(), table.specs()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    partitions: dict[str, Any] = {}
    positions: list[tuple[str, Any]] = []
    count = 0
    for manifest in snapshot.manifests(PyArrowFileIO()):
        spec = specs[manifest.partition_spec_id]
        for entry in manifest.fetch_manifest_entry(PyArrowFileIO()):
            file = entry.data_file
            own = tuple(file.partition[place] for place in range(len(spec.fields)))
            if file.content == DataFileContent.EQUALITY_DELETES:
                assert own == () or {field.source_id for field in spec.fields} <= set(schema.identifier_field_ids)
                continue
            assert own, "a data file or a position delete of no partition"
            if file.content == DataFileContent.POSITION_DELETES:
                positions.append((file.file_path, own))
                continue
            partitions[file.file_path] = own
            rows = pq.read_table(local_path(file.file_path))
            count += bool(rows.num_rows)
            for place, field in enumerate(spec.fields):
                source = schema.find_field(field.source_id)
                column = PartitionColumn(field.name, source.field_id, source.field_type, field.transform)
                values = plain_values(rows.column(source.name), source.field_type)
                found = {partition_key((None if value is None else column.function(value),)) for value in values}
                assert found <= {partition_key((own[place],))}, f"{file.file_path}, {field.name}"
    for path, own in positions:
        if path.endswith(".puffin"):
            # Its other vectors are of other partitions, or were replaced by later commits.
            vectors = HiddenRows.read([path], partitions, StorageOptions())
            assert any(partitions[named] == own for named in vectors), path
            continue
        for named in set(pq.read_table(local_path(path)).column("file_path").to_pylist()):
            assert partitions.get(named, own) == own, f"{path} names {named}"
    return count


class OrderChanges:
    """Random changes of `orders`, many of which move a row to another partition."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database, self._random, self._next = database, random.Random(seed), 1000

    def some(self, count: int = 25) -> None:
        with self._database.connect(autocommit=False) as connection:
            for number in range(count):
                first = self._random.randrange(1, 130)
                given = {
                    "first": first,
                    "last": first + self._random.randrange(6),
                    "new": self._next,
                    "tenant": self._random.choice([None, "t1", "t2", "", "é🧊x", "x" * 4000]),
                    "hours": self._random.randrange(-2000, 2000),
                    "code": self._random.randrange(9) / 4,
                }
                self._next += 7
                connection.execute(
                    self._random.choice(
                        [
                            b"UPDATE orders SET n = n + 1 WHERE id BETWEEN %(first)s AND %(last)s",
                            b"UPDATE orders SET tenant = %(tenant)s WHERE id BETWEEN %(first)s AND %(last)s",
                            b"UPDATE orders SET created = created + %(hours)s * interval '1 hour' WHERE id = %(first)s",
                            b"UPDATE orders SET code = %(code)s, n = n %% 3 WHERE id BETWEEN %(first)s AND %(last)s",
                            b"UPDATE orders SET id = %(new)s, tenant = %(tenant)s WHERE id = %(first)s",
                            b"DELETE FROM orders WHERE id BETWEEN %(first)s AND %(last)s",
                            b"INSERT INTO orders VALUES (%(new)s, now(), %(tenant)s, %(code)s, 0, 'v')",
                        ]
                    ),
                    given,
                )
                if number % 8 == 0:
                    connection.commit()
