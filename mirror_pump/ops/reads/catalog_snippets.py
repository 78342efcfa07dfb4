"""Ready-to-paste settings for reading the mirror through its REST catalog (`mirror-pump serve`).

Snippets never contain a token: they read it from the environment variable MIRROR_PUMP_CATALOG_TOKEN, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_pump.database.quoting import identifier, literal, spark_identifier
from mirror_pump.engine.spark_runtime.session import CATALOG, ICEBERG_PACKAGE
from mirror_pump.errors import UsageError
from mirror_pump.storage_kinds import StorageKind

TOKEN = "MIRROR_PUMP_CATALOG_TOKEN"  # noqa: S105 - the name of the variable, not a token
ENGINES = ("spark", "duckdb", "pyiceberg", "trino", "clickhouse")

_MOMENT = "# Attached as {warehouse}, all tables stay at one frontier until {until}."


@dataclass(frozen=True)
class CatalogAddress:
    """What a client attaches, and a table to try."""

    uri: str
    warehouse: str
    """Such as `mirror@latest`."""
    namespace: str
    name: str
    kind: StorageKind | None
    """Of the store that the lake is in; None if it is local."""
    storage: Mapping[str, str]
    """How that is reached, as pyiceberg's FileIO properties without secrets."""

    def moment(self, until: str) -> str:
        """A comment on what the client sees."""
        if "@" not in self.warehouse:
            return f"# Attached as {self.warehouse}, each table is the newest whenever a query loads it."
        return _MOMENT.format(warehouse=self.warehouse, until=until)


def catalog_snippet(engine: str, address: CatalogAddress) -> str:
    """The settings to paste into `engine`. Raises UsageError for one that is not known."""
    made = {
        "spark": _spark,
        "duckdb": _duckdb,
        "pyiceberg": _pyiceberg,
        "trino": _trino,
        "clickhouse": _clickhouse,
    }.get(engine)
    if made is None:
        raise UsageError(f"no settings are known for {engine}", f"known engines: {', '.join(ENGINES)}")
    problem = _unreachable(engine, address.namespace, address.name)
    comment = "--" if engine == "clickhouse" else "#"
    return (f"{comment} {problem}\n" if problem else "") + made(address)


def _unreachable(engine: str, namespace: str, name: str) -> str:
    """Why the engine does not find a table of this name by REST; empty if it does (docs/rest-catalog.md, names)."""
    if {namespace, name} & {".", ".."}:
        return (
            f"No engine finds {namespace}.{name} by REST: a name of one or two dots is lost in the path of a request."
        )
    if engine == "duckdb" and namespace == "main":
        return "DuckDB does not find tables of a schema that is called main by REST: it keeps the name for its own."
    if engine == "duckdb" and "." in namespace:
        return f"DuckDB does not find tables of schema {namespace} by REST: it reads a dot as a level of namespaces."
    return ""


def _spark(address: CatalogAddress) -> str:
    prefix = f"spark.sql.catalog.{CATALOG}"
    packages = [ICEBERG_PACKAGE]
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": address.uri,
        f"{prefix}.warehouse": address.warehouse,
        f"{prefix}.cache-enabled": "false",
    }
    if address.kind is not None:
        packages.append(address.kind.java_bundle)
        conf[f"{prefix}.io-impl"] = address.kind.java_io
        conf[f"{prefix}.header.X-Iceberg-Access-Delegation"] = "vended-credentials"
    conf = {"spark.jars.packages": ",".join(packages), **conf}
    lines = "\n".join(f"    .config({python_text(key)}, {python_text(value)})" for key, value in conf.items())
    table = f"{CATALOG}.{spark_identifier(address.namespace)}.{spark_identifier(address.name)}"
    return f"""\
# Python, with pyspark 4.1 and Java 17 or newer. If the catalog needs a token, it is expected in ${TOKEN}.
{address.moment("the session ends")}
import os
from pyspark.sql import SparkSession

builder = (
    SparkSession.builder
{lines}
)
if token := os.environ.get({python_text(TOKEN)}):
    builder = builder.config({python_text(f"{prefix}.token")}, token)
spark = builder.getOrCreate()
spark.sql({python_text(f"SELECT * FROM {table} LIMIT 10")}).show()"""


def _duckdb(address: CatalogAddress) -> str:
    delegation = "" if address.kind is not None else ", ACCESS_DELEGATION_MODE 'none'"
    attach = (
        f"ATTACH {literal(address.warehouse)} AS {CATALOG}"
        f" (TYPE iceberg, ENDPOINT {literal(address.uri)}, {{access}}{delegation})"
    )
    query = f"SELECT * FROM {CATALOG}.{identifier(address.namespace)}.{identifier(address.name)} LIMIT 10"
    return f"""\
# Python, with duckdb 1.5. If the catalog needs a token, it is expected in ${TOKEN}.
{address.moment("they are attached again")}
import os
import duckdb

connection = duckdb.connect()
connection.execute("INSTALL avro; LOAD avro; INSTALL httpfs; LOAD httpfs; INSTALL iceberg; LOAD iceberg")
token = os.environ.get({python_text(TOKEN)})
access = f"TOKEN '{{token}}'" if token else "AUTHORIZATION_TYPE 'none'"
connection.execute(f{python_text(attach)})
connection.sql({python_text(query)}).show()"""


def _pyiceberg(address: CatalogAddress) -> str:
    properties = {"type": "rest", "uri": address.uri, "warehouse": address.warehouse}
    if address.kind is not None:
        properties["header.X-Iceberg-Access-Delegation"] = "vended-credentials"
    lines = "\n".join(f"    {python_text(key)}: {python_text(value)}," for key, value in properties.items())
    return f"""\
# Python, with pyiceberg[pyarrow]. If the catalog needs a token, it is expected in ${TOKEN}.
{address.moment("the catalog is loaded again")}
import os
from pyiceberg.catalog import load_catalog

properties = {{
{lines}
}}
if token := os.environ.get({python_text(TOKEN)}):
    properties["token"] = token
catalog = load_catalog({python_text(CATALOG)}, **properties)
rows = catalog.load_table(({python_text(address.namespace)}, {python_text(address.name)})).scan(limit=10).to_arrow()
print(rows)"""


def _trino(address: CatalogAddress) -> str:
    properties = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": address.uri,
        "iceberg.rest-catalog.warehouse": address.warehouse,
        # Trino would write files first and only then be refused to commit them.
        "iceberg.security": "read_only",
    }
    keys = ""
    if address.kind is not None:
        keys = address.kind.trino_remark
        properties |= {"iceberg.rest-catalog.vended-credentials-enabled": "true"}
        properties |= address.kind.trino_properties(address.storage)
    else:
        properties["fs.hadoop.enabled"] = "true"
    lines = "\n".join(f"{key}={value}" for key, value in properties.items())
    return f"""\
# etc/catalog/{CATALOG}.properties of every Trino node. If the catalog needs a token, uncomment the last lines.{keys}
{address.moment("Trino is started again")}
{lines}
#iceberg.rest-catalog.security=OAUTH2
#iceberg.rest-catalog.oauth2.token=${{ENV:{TOKEN}}}

# Then:  SELECT * FROM {CATALOG}.{identifier(address.namespace)}.{identifier(address.name)} LIMIT 10;"""


def _clickhouse(address: CatalogAddress) -> str:
    table = f"{CATALOG}.`{address.namespace}.{address.name}`"
    settings = {"catalog_type": "rest", "warehouse": address.warehouse}
    own_keys = "s3.endpoint" in address.storage
    if own_keys:
        settings |= {"storage_endpoint": address.storage["s3.endpoint"]}
        settings |= {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
    lines = ", ".join(f"{key} = {literal(value)}" for key, value in settings.items())
    if own_keys or address.kind is None:
        # It refuses tables that come without credentials, and looks for files in the wrong place if an endpoint comes
        # with them (ClickHouse's issue 93283, seen in 26.9).
        lines += ", vended_credentials = false"
    keys = "\n-- Put in keys that may read the bucket." if own_keys else ""
    return f"""\
-- ClickHouse. If the catalog needs a token, add: auth_header = 'Authorization: Bearer ...'{keys}
{address.moment("the database is created again").replace("#", "--", 1)}
SET allow_experimental_database_iceberg = 1;
CREATE DATABASE {CATALOG} ENGINE = DataLakeCatalog({literal(f"{address.uri}/v1")}) SETTINGS {lines};
SELECT * FROM {table} LIMIT 10;"""


def python_text(value: str) -> str:
    """Return `value` as a Python string literal, in double quotes where possible."""
    return f'"{value}"' if '"' not in value and "\\" not in value and value.isprintable() else repr(value)
