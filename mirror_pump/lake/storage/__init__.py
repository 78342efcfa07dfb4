"""The lake's storage: local files, made durable, or any store that pyiceberg can open.

Other rooms import from here.
"""

from mirror_pump.lake.storage.gathered_writes import gathered_writes
from mirror_pump.lake.storage.local_files import fill, open_new, sync_directory, temporary_path, write_whole
from mirror_pump.lake.storage.options import StorageAccess, StorageOptions, join, local_path, storage_of
from mirror_pump.lake.storage.reading import (
    StoredFile,
    directory_answers,
    exists,
    list_directories,
    list_files,
    missing_files,
    open_input,
    read_bytes,
    size_of,
)
from mirror_pump.lake.storage.removal import StagedFiles, delete, delete_tree, discard
from mirror_pump.lake.storage.storage_errors import lake_errors, no_room
from mirror_pump.lake.storage.writing import (
    begin_writes,
    make_directories,
    open_output,
    write_all,
    write_bytes,
)

__all__ = [
    "StagedFiles",
    "StorageAccess",
    "StorageOptions",
    "StoredFile",
    "begin_writes",
    "delete",
    "delete_tree",
    "directory_answers",
    "discard",
    "exists",
    "fill",
    "gathered_writes",
    "join",
    "lake_errors",
    "list_directories",
    "list_files",
    "local_path",
    "make_directories",
    "missing_files",
    "no_room",
    "open_input",
    "open_new",
    "open_output",
    "read_bytes",
    "size_of",
    "storage_of",
    "sync_directory",
    "temporary_path",
    "write_all",
    "write_bytes",
    "write_whole",
]
