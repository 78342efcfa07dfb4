"""The rows that position deletes hide, whichever form they are stored in. Runs in tasks, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.deletion_vectors import (
    PUFFIN_SUFFIX,
    DeletionVector,
    VectorPlace,
    read_deletion_vectors,
    read_vectors_of_files,
)
from mirror_pump.lake.format.position_deletes import Positions, read_position_deletes
from mirror_pump.lake.storage import StorageOptions


class HiddenRows(Mapping[str, Positions]):
    """Sorted row numbers by data file URI, held as bitmaps: some 2 bytes a row. Immutable, and picklable. The
    numbers of a file are made when they are asked for, in 8 bytes each: one file after the other takes little memory.
    """

    __slots__ = ("_vectors",)

    def __init__(self, vectors: Mapping[str, DeletionVector] | None = None) -> None:
        """`vectors`: by data file URI. Those of no rows are left out."""
        self._vectors = {path: vector for path, vector in (vectors or {}).items() if len(vector)}

    @classmethod
    def of(cls, rows: Mapping[str, Positions]) -> Self:
        """Row numbers in any order."""
        if isinstance(rows, cls):
            return rows
        return cls({path: DeletionVector.of(positions) for path, positions in rows.items()})

    @classmethod
    def read(cls, files: Sequence[str], data_files: Collection[str], storage: StorageOptions) -> Self:
        """The rows of `data_files` that position-delete files or files of deletion vectors hide. Of a file of vectors
        all count, also those that newer ones have replaced: these have the same rows, and more. Raises LakeError."""
        puffins = list(dict.fromkeys(file for file in files if file.endswith(PUFFIN_SUFFIX)))
        others = [file for file in files if not file.endswith(PUFFIN_SUFFIX)]
        hidden = cls(read_vectors_of_files(puffins, data_files, storage))
        if not others:
            return hidden
        positions = read_position_deletes(others, data_files, storage)
        with decoding(", ".join(others), "a readable position-delete file"):
            if any(rows[0] < 0 for rows in positions.values()):
                raise ValueError("row numbers begin at 0")
        return hidden.union(cls.of(positions))

    @classmethod
    def read_each(
        cls,
        data_files: Mapping[str, VectorPlace | None],
        files: Sequence[str],
        storage: StorageOptions,
    ) -> Self:
        """The rows of data files, by URI: by their vectors, and of files without one by the position-delete files
        `files`. Raises LakeError."""
        without = [path for path, place in data_files.items() if place is None]
        hidden = cls.read(files, without, storage) if without and files else cls()
        places = {path: place for path, place in data_files.items() if place is not None}
        vectors = read_deletion_vectors(list(places.values()), storage)
        return hidden.union(cls(dict(zip(places, vectors, strict=True))))

    def __getitem__(self, path: str) -> Positions:
        return self._vectors[path].positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HiddenRows) and self._vectors == other._vectors

    __hash__ = None  # type: ignore[assignment]

    def vector(self, path: str) -> DeletionVector:
        """The rows of a data file; one of none is empty."""
        return self._vectors.get(path) or DeletionVector.empty()

    @property
    def vectors(self) -> Mapping[str, DeletionVector]:
        """The rows as bitmaps, by data file URI. None is empty."""
        return self._vectors

    @property
    def rows(self) -> int:
        """Their number."""
        return sum(map(len, self._vectors.values()))

    @classmethod
    def united(cls, parts: Iterable[HiddenRows]) -> Self:
        """What any of them has."""
        united: dict[str, DeletionVector] = {}
        for part in parts:
            for path, vector in part._vectors.items():
                united[path] = united[path].union(vector) if path in united else vector
        return cls(united)

    def union(self, other: HiddenRows) -> Self:
        """What either has."""
        return self.united((self, other))

    def of_files(self, paths: Collection[str]) -> Self:
        """The rows of these data files alone."""
        return type(self)({path: vector for path, vector in self._vectors.items() if path in paths})

    def without(self, other: HiddenRows) -> Self:
        """The rows that `other` has not."""
        return type(self)({
            path: vector.without(other._vectors[path]) if path in other._vectors else vector
            for path, vector in self._vectors.items()
        })  # fmt: skip


NO_ROWS = HiddenRows()
