"""Why a table refuses a commit. In all cases it is as before, and nothing that the commit wrote is left."""

from __future__ import annotations

from collections.abc import Iterable

from mirror_pump.errors import LakeError


class TableMissing(LakeError):
    """The catalog has no table of this name."""


class TableExists(LakeError):
    """The catalog has a table of this name already."""


class FileRefused(LakeError):
    """A data file cannot be a file of the table."""


class SchemaMismatch(FileRefused):
    """A data file has columns that neither are the table's nor can be added to it."""


class ConflictingCommit(LakeError):
    """Another writer changed what an overwrite is about. Trying again cannot help: look at the table's new state."""

    def __init__(self, message: str, remedy: str, files: Iterable[str] = ()) -> None:
        super().__init__(message, remedy)
        self.files = tuple(files)
        """The files to remove that are no longer in the table."""
