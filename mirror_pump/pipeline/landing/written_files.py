"""What is written for a landing, and goes if it does not land."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import StorageOptions, delete_tree


class WrittenFiles:
    """Owns what nothing refers to until a landing names it. A context manager.

    Whatever ends the block, what was not kept is removed.
    """

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._tables: list[str] = []

    def own_table(self, location: str) -> None:
        """Adds the location of a new table, before its first file is written. Nothing else is ever written below it."""
        self._tables.append(location.rstrip("/"))

    def keep(self, *locations: str) -> None:
        """The catalog names the tables at these locations now, or may name them."""
        kept = {location.rstrip("/") for location in locations}
        self._tables = [location for location in self._tables if location not in kept]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for location in self._tables:
            with suppress(LakeError):
                delete_tree(location, self._storage)
