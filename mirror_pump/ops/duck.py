"""DuckDB within the process, with the Iceberg extension from PyPI: nothing is downloaded unless the lake is in S3."""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING

from mirror_pump.config import Settings
from mirror_pump.errors import LakeError, UsageError
from mirror_pump.quoting import literal

if TYPE_CHECKING:
    import duckdb

_EXTENSIONS = ("avro", "iceberg")
"""In this order: iceberg reads its manifests by avro."""


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """DuckDB in memory, in time zone UTC. UsageError where the packages of the extra `sql` are not installed.

    It plans without statistics: by them, tables without a row would vanish from the plan that says which columns to
    bring (mirror_pump.ops.views), and DuckDB 1.5 fails with an internal error at some queries over an Iceberg table
    that has more rows in delete files than in data files, as rewrites by other engines may leave it.
    """
    require_duckdb()
    import duckdb

    try:
        connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        for name in _EXTENSIONS:
            files = importlib.resources.files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
            connection.execute(f"LOAD '{files / f'{name}.duckdb_extension'}'")
    except ImportError as error:
        raise _not_installed(error) from error
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    return connection


def require_duckdb() -> None:
    """UsageError where DuckDB cannot be imported."""
    try:
        import duckdb  # noqa: F401 - others import it next
    except ImportError as error:
        raise _not_installed(error) from error


def _not_installed(error: ImportError) -> UsageError:
    return UsageError(
        f"DuckDB is not installed ({error.name or error})", "pip install 'mirror-pump[sql]', which brings it"
    )


def reach_storage(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    """Gives DuckDB what it needs to read the warehouse; nothing for files. LakeError if its S3 extension cannot be
    had."""
    import duckdb

    if not settings.require_warehouse().startswith("s3://"):
        return
    properties = settings.storage_properties
    options = ["TYPE s3"]
    for key, name in (
        ("s3.access-key-id", "KEY_ID"),
        ("s3.secret-access-key", "SECRET"),
        ("s3.session-token", "SESSION_TOKEN"),
        ("s3.region", "REGION"),
    ):
        if key in properties:
            options.append(f"{name} {literal(properties[key])}")
    if "s3.endpoint" in properties:
        scheme, _, host = properties["s3.endpoint"].rpartition("://")
        options += [
            f"ENDPOINT {literal(host)}",
            "URL_STYLE 'path'",
            f"USE_SSL {'false' if scheme == 'http' else 'true'}",
        ]
    try:
        connection.execute("INSTALL httpfs; LOAD httpfs")
        if "s3.access-key-id" not in properties:
            connection.execute("INSTALL aws; LOAD aws")
            options.append("PROVIDER credential_chain")
        connection.execute(f"CREATE SECRET ({', '.join(options)})")
    except duckdb.Error as error:
        raise LakeError(
            f"DuckDB cannot read the lake in S3: {' '.join(str(error).split())}",
            "its extension httpfs is downloaded once: let it reach extensions.duckdb.org",
        ) from error
