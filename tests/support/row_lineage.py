"""A model of row lineage: which ID each row of a mirrored table has, and when it was last updated."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.testing.mirror import Mirror

Lineage: TypeAlias = tuple[int, int]
"""`_row_id` and `_last_updated_sequence_number`."""
COLUMNS = ("id", "v", "_row_id", "_last_updated_sequence_number")
_STORAGE = StorageOptions(fsync=False)


class KeyChange(StrEnum):
    """What a transaction does to a key."""

    INSERT = "insert"
    UPDATE = "update"
    """By key, also as DELETE and INSERT in the same transaction."""
    DELETE = "delete"


@dataclass
class MirroredLineage:
    """A table (id, v) of a mirror, whose values of v are distinct, and what its rows must have."""

    mirror: Mirror
    table: str
    drawn: random.Random
    lineage: dict[int, Lineage] = field(default_factory=dict)
    """By key."""
    row_ids: set[int] = field(default_factory=set)
    """All that were ever there."""
    sequence_number: int = 0
    """Of the snapshot that was checked last."""
    updated: int = 0
    """Rows that kept their ID in an update."""
    _values: int = 0

    def transaction(self, most: int = 40) -> dict[int, KeyChange]:
        """Commits random changes, and returns them by key."""
        changes: dict[int, KeyChange] = {}
        keys = list(self.lineage)
        self.drawn.shuffle(keys)
        with self.mirror.database.session(autocommit=False) as connection:

            def execute(statement: str) -> None:
                connection.execute(statement.encode())

            for _ in range(self.drawn.randrange(1, most)):
                free = [key for key in range(-1000, 1000) if key not in self.lineage and key not in changes]
                new_key, value = self.drawn.choice(free), self.value()
                key = keys.pop() if keys else None
                kind = self.drawn.choice("iuuuurdk")
                if kind == "i" or key is None:
                    execute(f"INSERT INTO {self.table} (id, v) VALUES ('{new_key}', '{value}')")
                    changes[new_key] = KeyChange.INSERT
                elif kind in "ur":
                    if kind == "r":
                        execute(f"DELETE FROM {self.table} WHERE id = '{key}'")
                        execute(f"INSERT INTO {self.table} (id, v) VALUES ('{key}', '{value}')")
                    else:
                        execute(f"UPDATE {self.table} SET v = '{value}' WHERE id = '{key}'")
                    changes[key] = KeyChange.UPDATE
                elif kind == "d":
                    execute(f"DELETE FROM {self.table} WHERE id = '{key}'")
                    changes[key] = KeyChange.DELETE
                else:
                    execute(f"UPDATE {self.table} SET id = '{new_key}' WHERE id = '{key}'")
                    changes |= {key: KeyChange.DELETE, new_key: KeyChange.INSERT}
        return changes

    def value(self) -> str:
        """One that no row has had."""
        self._values += 1
        return f"v{self._values}"

    def read(self) -> tuple[int, list[dict[str, Any]]]:
        """The sequence number of the current snapshot, and its rows."""
        metadata = read_metadata(self.mirror.location(self.table), _STORAGE)
        assert metadata.current_snapshot is not None
        rows = Scan(read_plan(metadata, _STORAGE, columns=list(COLUMNS))).to_arrow(1).to_pylist()
        for row in rows:
            row["id"] = int(row["id"])
        return int(metadata.current_snapshot.sequence_number), rows

    def check(self, changes: Mapping[int, KeyChange], *, by_position: bool = True) -> None:
        """The rows after these changes, which the lake has and nothing else. `by_position`: the pump knew the places of
        rows, else rows that are updated may be new ones."""
        sequence_number, rows = self.read()
        heap = {int(key): value for key, value in self.mirror.database.rows(f"SELECT id, v FROM {self.table}")}
        assert sorted((row["id"], row["v"]) for row in rows) == sorted(heap.items())
        now = {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}
        assert len({row_id for row_id, _ in now.values()}) == len(now)
        for key, (row_id, updated) in now.items():
            change = changes.get(key)
            if change is None:
                assert (row_id, updated) == self.lineage[key], (key, "a row that does not change keeps its lineage")
                continue
            assert self.sequence_number < updated <= sequence_number, (key, change)
            if change is KeyChange.UPDATE and (by_position or row_id == self.lineage[key][0]):
                assert row_id == self.lineage[key][0], (key, "a row that is updated keeps its ID")
                self.updated += 1
            else:
                assert row_id not in self.row_ids, (key, "a new row has a new ID")
        self.lineage = now
        self.row_ids |= {row_id for row_id, _ in now.values()}
        self.sequence_number = sequence_number

    def take(self) -> None:
        """Takes over what the table has."""
        self.sequence_number, rows = self.read()
        self.lineage = {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}
        self.row_ids = {row_id for row_id, _ in self.lineage.values()}
