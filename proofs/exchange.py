"""Files that upkeep replaces, computed from a state that is past when they land, seen by one key.

A conversion replaces equality deletes by position deletes of the rows that they hide. A merge replaces data files by
one that has their rows, but for those that are deleted by position. Another engine rewrites data files without the
rows that are deleted, and gives the new file the sequence number of the snapshot that it began with. Meanwhile the
stream changes the row, by either kind of delete, and the copy's last chunk lands, with the start sequence number 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

CHANGES = 3
COPIED = 1
"""The row's version that the copy brings."""
MERGED = 9
"""The name of a merge's file."""
REWRITTEN = 8
"""The name of another engine's file."""
WHOLE = "a conversion begins once the copy is complete"
NEWER = "a conversion lands only if all files that came since have higher sequence numbers"
BETWEEN = "a merge has no equality delete whose number is between those of its sources"
FOLLOWED = "rows of a merge's sources that were deleted by position since are deleted in its file"
GONE = "rows of a merge's sources that are gone are deleted in its file"
ROWS = "same rows"
GUARDS = {WHOLE: ROWS, NEWER: ROWS, BETWEEN: ROWS, FOLLOWED: ROWS, GONE: ROWS}


@dataclass(frozen=True)
class DataFile:
    """A data file."""

    name: int
    number: int
    """Its data sequence number."""
    versions: tuple[int, ...]
    """Its rows: versions of the row, by position."""


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot of the table consists of."""

    files: frozenset[DataFile] = frozenset()
    equality_deletes: frozenset[int] = frozenset()
    """Their sequence numbers."""
    position_deletes: frozenset[tuple[int, int]] = frozenset()
    """Names of files, and positions in them."""

    def visible(self) -> list[int]:
        """The row's versions that a reader sees."""
        return sorted(
            version
            for file in self.files
            if not any(file.number < number for number in self.equality_deletes)
            for version in self.left(file)
        )

    def left(self, file: DataFile) -> tuple[int, ...]:
        """The file's rows that are not deleted by position."""
        deleted = self.position_deletes
        return tuple(v for position, v in enumerate(file.versions) if (file.name, position) not in deleted)


@dataclass(frozen=True)
class Exchanging:
    """A state of the lake table and of the upkeep's work."""

    snapshot: Snapshot = Snapshot()
    version: int = 0
    """What the row is as of the frontier and the copy; 0: no row."""
    changes: int = 0
    copied: bool = False
    conversion: Snapshot | None = None
    """What a conversion is computed from."""
    merge: Snapshot | None = None
    """The same of a merge."""
    rewrite: Snapshot | None = None
    """The same of another engine's rewrite."""
    begun: frozenset[str] = frozenset()
    """Which of the three have begun once."""

    def broken(self) -> Iterator[str]:
        """Readers see the row as it is, once: an exchange changes no row."""
        if self.snapshot.visible() != ([self.version] if self.version else []):
            yield ROWS

    def steps(self, guards: frozenset[str]) -> Iterator[tuple[str, Exchanging]]:
        """What the stream, the copy and upkeep may do next."""
        if self.changes < CHANGES:
            yield from self._changes()
        if not self.copied:
            version = self.version if self.changes else COPIED
            yield "the last chunk lands", replace(self, copied=True, version=version)._added(0, COPIED)
        if self.snapshot.equality_deletes and (self.copied or WHOLE not in guards):
            yield from self._begin("conversion")
        if len(self.snapshot.files) > 1 and not self._is_between(self.snapshot, guards):
            yield from self._begin("merge")
        if self.snapshot.files:
            yield from self._begin("rewrite")
        if self.conversion is not None:
            yield "the conversion ends", replace(self._converted(self.conversion, guards), conversion=None)
        if self.merge is not None:
            yield "the merge ends", replace(self._merged(self.merge, guards), merge=None)
        if self.rewrite is not None:
            yield "another engine's rewrite ends", replace(self._rewritten(self.rewrite), rewrite=None)

    def _begin(self, name: str) -> Iterator[tuple[str, Exchanging]]:
        if name not in self.begun:
            begun: dict[str, Any] = {name: self.snapshot, "begun": self.begun | {name}}
            yield f"a {name} begins", replace(self, **begun)

    def _changes(self) -> Iterator[tuple[str, Exchanging]]:
        number = self.changes + 1
        counted = replace(self, changes=number)
        snapshot = self.snapshot
        by_key = replace(snapshot, equality_deletes=snapshot.equality_deletes | {number})
        version = number + COPIED
        yield "an UPDATE, by key", replace(counted, snapshot=by_key, version=version)._added(number, version)
        yield "a DELETE, by key", replace(counted, snapshot=by_key, version=0)
        if self.copied and self.version:
            # The key index, which is complete after the copy, knows where the row is.
            by_position = replace(snapshot, position_deletes=snapshot.position_deletes | {self._place()})
            changed = replace(counted, snapshot=by_position, version=version)
            yield "an UPDATE, by position", changed._added(number, version)

    def _place(self) -> tuple[int, int]:
        """File and position of the row."""
        return next(
            (file.name, file.versions.index(self.version))
            for file in sorted(self.snapshot.files, key=lambda file: -file.number)
            if self.version in self.snapshot.left(file)
        )

    def _added(self, number: int, version: int) -> Exchanging:
        files = self.snapshot.files | {DataFile(number, number, (version,))}
        return replace(self, snapshot=replace(self.snapshot, files=files))

    def _converted(self, source: Snapshot, guards: frozenset[str]) -> Exchanging:
        current, replaced = self.snapshot, source.equality_deletes
        newest = max([file.number for file in source.files] + list(replaced))
        if NEWER in guards and any(file.number <= newest for file in current.files - source.files):
            return self
        positions = {
            (file.name, position)
            for file in source.files
            for position in range(len(file.versions))
            if any(file.number < number for number in replaced)
        }
        converted = replace(
            current,
            equality_deletes=current.equality_deletes - replaced,
            position_deletes=current.position_deletes | positions,
        )
        return replace(self, snapshot=converted)

    def _merged(self, source: Snapshot, guards: frozenset[str]) -> Exchanging:
        current, sources = self.snapshot, sorted(source.files, key=lambda file: file.number)
        if not source.files & current.files:
            return self
        if self._is_between(replace(current, files=source.files), guards):
            return self
        rows = [
            (file.name, position, version)
            for file in sources
            for position, version in enumerate(file.versions)
            if (file.name, position) not in source.position_deletes
        ]
        merged = DataFile(MERGED, sources[-1].number, tuple(version for _, _, version in rows))
        names = {file.name for file in sources}
        deletes = {delete for delete in current.position_deletes if delete[0] not in names}
        live = {file.name for file in current.files}
        deletes |= {
            (MERGED, place)
            for place, (name, position, _) in enumerate(rows)
            if (GONE in guards and name not in live)
            or (FOLLOWED in guards and name in live and (name, position) in current.position_deletes)
        }
        files = (current.files - source.files) | {merged}
        return replace(self, snapshot=replace(current, files=files, position_deletes=frozenset(deletes)))

    def _rewritten(self, source: Snapshot) -> Exchanging:
        """Iceberg itself refuses a rewrite if its sources are gone, or rows of them were deleted by position since."""
        current, names = self.snapshot, {file.name for file in source.files}
        deleted = {name for name, _ in current.position_deletes - source.position_deletes}
        if not source.files <= current.files or deleted & names:
            return self
        number = max([file.number for file in source.files] + list(source.equality_deletes))
        files = (current.files - source.files) | {DataFile(REWRITTEN, number, tuple(source.visible()))}
        return replace(self, snapshot=replace(current, files=files))

    def _is_between(self, snapshot: Snapshot, guards: frozenset[str]) -> bool:
        numbers = [file.number for file in snapshot.files]
        deletes = snapshot.equality_deletes
        return BETWEEN in guards and any(min(numbers) < number <= max(numbers) for number in deletes)
