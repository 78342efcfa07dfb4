"""Opens DuckDB within the process, with its extensions from PyPI, so that nothing is downloaded at run time."""

from __future__ import annotations

import importlib.resources
import os
import signal
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import LakeError, UsageError, one_line_of
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.raw_text_columns import without_raw_text
from mirror_pump.lake.profile_access import ReachableWarehouse
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.ops.document_rows import document_rows, has_variants
from mirror_pump.runtime.private_files import private_directory
from mirror_pump.settings.credentials import without_secrets
from mirror_pump.storage_kinds import kind_of

if TYPE_CHECKING:
    import duckdb


_EXTENSIONS = ("avro", "iceberg")
"""Extensions in the order of loading: iceberg needs avro to read manifests."""
_INSTALL = "pip install 'mirror-pump[sql]', which brings it"


def require_duckdb() -> None:
    """Raise UsageError if the packages of the extra `sql` are not installed."""
    try:
        import duckdb  # noqa: F401 - whether it is there
    except ImportError as error:
        raise UsageError(f"DuckDB is not installed ({error.name or error})", _INSTALL) from error


def open_duckdb(*further: str) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB in time zone UTC. Raises UsageError if packages of the extra `sql` are not installed.

    `further`: extensions besides those that read Iceberg tables.

    Statistics propagation is disabled for two reasons. With it, tables without rows would vanish from the plan that
    tells which columns to read (mirror_pump.ops.reads.views). And DuckDB 1.5 fails with an internal error at some
    queries over an Iceberg table that has more rows in delete files than in data files. Rewrites by other engines may
    leave a table in that state.
    """
    require_duckdb()
    connection = open_planner()
    for name in (*_EXTENSIONS, *further):
        _load(connection, name)
    return connection


def open_planner() -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that understands statements as that of `open_duckdb` does, but reads no lake."""
    import duckdb

    # A name in a query that is not a table must not refer to a Python variable of this process.
    settings = {
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
        # By default rows that do not fit into memory go to the working directory, where others may read them.
        "temp_directory": str(private_directory() / f"duckdb-{uuid.uuid4().hex}"),
    }
    connection = duckdb.connect(config=settings)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    return connection


def _load(connection: duckdb.DuckDBPyConnection, extension: str) -> None:
    """Load an extension from its package, which has one file for each version of DuckDB.

    Raises UsageError if the package is not installed.
    """
    import duckdb

    try:
        files = importlib.resources.files(f"duckdb_extension_{extension}") / "extensions" / f"v{duckdb.__version__}"
    except ImportError as error:
        raise UsageError(f"DuckDB's extension {extension} is not installed", _INSTALL) from error
    connection.execute(f"LOAD {literal(str(files / f'{extension}.duckdb_extension'))}")


def reach_storage(connection: duckdb.DuckDBPyConnection, warehouses: Iterable[ReachableWarehouse]) -> None:
    """Give DuckDB what it needs to read these warehouses, as far as they are in object stores: for S3 its extensions
    and the credentials, for others the files as this program opens them.

    Leaves out warehouses without credentials: a read of their tables says why. If a warehouse has no access key,
    DuckDB looks for credentials where AWS's own tools do. Raises UsageError if DuckDB's S3 extensions are not
    installed, and LakeError if DuckDB rejects the credentials.
    """
    import duckdb

    by_program: list[ReachableWarehouse] = []
    for number, warehouse in enumerate(warehouses):
        kind = kind_of(warehouse.root)
        if kind is None or warehouse.error is not None:
            continue
        secret = kind.duckdb_secret(warehouse.properties)
        if secret is None:
            by_program.append(warehouse)
            continue
        for extension in secret.extensions:
            _load(connection, extension)
        options = ", ".join((*secret.options, f"SCOPE {literal(warehouse.root + '/')}"))
        try:
            connection.execute(f"CREATE OR REPLACE SECRET warehouse_{number} ({options})")
        except duckdb.Error as error:
            raise LakeError(
                f"DuckDB cannot read the lake in {warehouse.root}:"
                f" {without_secrets(one_line_of(error), warehouse.properties)}",
                "give the storage's access key and secret key, or set them up for AWS's own tools",
            ) from None
    if by_program:
        # With fsspec, which a lake in S3 does without.
        from mirror_pump.ops.duckdb_files import register_files

        register_files(connection, by_program)


def confine(connection: duckdb.DuckDBPyConnection, directories: Iterable[str]) -> None:
    """Let the connection open only files below these directories, local or in a bucket, from here on: no other
    database, no further extension, no other setting. For one that reads what strangers have written."""
    roots = [f"{local_path(directory) or directory.rstrip('/')}/" for directory in directories]
    # The URI of a local file is another text.
    allowed = [*roots, *(f"file://{root}" for root in roots if root.startswith("/"))]
    connection.execute(f"SET allowed_directories = [{', '.join(map(literal, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


_AGAIN = 0.1
"""Seconds between interrupts. They are repeated because DuckDB forgets an interrupt that falls between statements."""


@contextmanager
def stopped_by_ctrl_c(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """While the block runs, Ctrl-C stops what the connection executes.

    Python runs signal handlers in the main thread, between two of its own instructions. DuckDB allows that now and
    then, but not while the main thread waits for DuckDB's own threads, which do all the work. Then Ctrl-C would have no
    effect until the query ends. So another thread receives the signal and interrupts DuckDB.

    KeyboardInterrupt is then raised at the end of the block, so that it does not disturb any cleanup after the block.
    This has no effect outside of the main thread, which alone handles signals, or if Ctrl-C is ignored.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    import duckdb

    interrupted, over = threading.Event(), threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while heard := os.read(reader, 1):
            if heard[0] == signal.SIGINT:
                interrupted.set()
                while not over.wait(_AGAIN):
                    connection.interrupt()

    watcher = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    watcher.start()
    former_handler = signal.signal(signal.SIGINT, lambda *_: None)
    former_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    finally:
        signal.set_wakeup_fd(former_fd)
        signal.signal(signal.SIGINT, former_handler)
        over.set()
        os.close(writer)
        watcher.join()
        os.close(reader)
    if interrupted.is_set():
        raise KeyboardInterrupt


def lake_relation(connection: duckdb.DuckDBPyConnection, location: str, storage: StorageOptions) -> str:
    """The SQL of a relation with the rows of the table with this metadata file, as DuckDB reads it. If it has variants,
    all rows are loaded first. Raises LakeError."""
    schema = read_metadata(location, storage).current_schema
    if not has_variants(schema):
        return f"iceberg_scan({literal(location)})"
    name = f"documents_{uuid.uuid4().hex}"
    listed = ", ".join(identifier(field.name) for field in schema.fields)
    connection.register(f"read_{name}", document_rows(location, without_raw_text(schema), storage))
    connection.execute(f"CREATE TABLE {name} AS SELECT {listed} FROM read_{name}")
    connection.unregister(f"read_{name}")
    return name
