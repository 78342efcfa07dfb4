"""The process in which one engine reads tables: `python engine_process.py ENGINE`, by the Python that has the engine.

Needs nothing of this project, since engines have environments of their own. Its first line on stdout is the engine's
name and version. Then there is a JSON object a line: a request on stdin, and its answer on stdout. A request has the
`location` of a metadata file, `columns`, and perhaps `condition` (column, operator, type, value), `snapshot_id`,
`only_count`, and `documents`, the variant columns, which are asked for as JSON. An answer has `rows`, `count`, or the
`error`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import uuid
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

SPARK_JARS = {
    "4": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "3": "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0",
}
Request = dict[str, Any]
Rows = list[Any]


def cell(value: Any) -> Any:
    """A value for JSON. What JSON has no form for is text; bytes are an object, since some engines' texts are bytes."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, (list, tuple)):
        return [cell(element) for element in value]
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo is None else value.astimezone(datetime.timezone.utc)).isoformat()  # noqa: UP017
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, (str, Decimal, uuid.UUID)):
        return str(value)
    raise TypeError(f"a value of {type(value)}")


class SqlDialect:
    """How an engine writes a query."""

    quote = '"'
    casts: ClassVar[dict[str, str]] = {"timestamptz": "TIMESTAMP WITH TIME ZONE"}
    document = "CAST({} AS JSON)"
    """A variant as JSON."""

    def literal(self, kind: str, value: Any) -> str:
        if kind == "boolean":
            return str(value).lower()
        if kind in ("int", "long"):
            return str(value)
        text = "'" + str(value).replace("'", "''") + "'"
        return text if kind == "string" else f"CAST({text} AS {self.casts.get(kind, kind.upper())})"

    def select(self, table: str, request: Request) -> str:
        names = ", ".join(self.values(request))
        query = f"SELECT {'count(*)' if request.get('only_count') else names} FROM {table}"
        return f"{query} WHERE {self.condition(request)}" if request.get("condition") else query

    def values(self, request: Request) -> list[str]:
        documents = request.get("documents", ())
        return [(self.document if name in documents else "{}").format(self.column(name)) for name in request["columns"]]

    def condition(self, request: Request) -> str:
        name, operator, kind, value = request["condition"]
        return f"{self.column(name)} {operator} {self.literal(kind, value)}"

    def column(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"


class TableReader:
    """An engine that reads by SQL."""

    dialect = SqlDialect()
    name: str

    def answer(self, request: Request) -> dict[str, Any]:
        rows = self.rows(request)
        if request.get("only_count"):
            ((count,),) = rows
            return {"count": int(count)}
        return {"rows": [[cell(value) for value in row] for row in rows]}

    def rows(self, request: Request) -> Rows:
        raise NotImplementedError


class _SparkDialect(SqlDialect):
    quote = "`"
    document = "to_json({})"
    casts: ClassVar = {"timestamptz": "TIMESTAMP", "timestamp": "TIMESTAMP_NTZ"}

    def literal(self, kind: str, value: Any) -> str:
        return super().literal(kind, value).replace("''", "\\'")


class SparkReader(TableReader):
    """Through a DataFrame of the metadata file."""

    dialect = _SparkDialect()

    def __init__(self) -> None:
        import pyspark
        from pyspark.sql import SparkSession

        package = SPARK_JARS[pyspark.__version__[0]]
        self.name = f"Spark {pyspark.__version__} with Iceberg {package.rpartition(':')[2]}"
        settings = {
            "spark.ui.enabled": "false",
            "spark.jars.packages": package,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        }
        builder = SparkSession.builder.master("local[1]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self._session = builder.getOrCreate()
        self._session.sparkContext.setLogLevel("OFF")

    def rows(self, request: Request) -> Rows:
        reader = self._session.read.format("iceberg")
        if request.get("snapshot_id"):
            reader = reader.option("versionAsOf", str(request["snapshot_id"]))
        # Without a view, which would not have the columns of row lineage.
        frame = reader.load(request["location"])
        if request.get("condition"):
            frame = frame.where(self.dialect.condition(request))
        if request.get("only_count"):
            return [(frame.count(),)]
        return [tuple(row) for row in frame.selectExpr(*self.dialect.values(request)).collect()]


class DuckDBReader(TableReader):
    """iceberg_scan of the metadata file."""

    def __init__(self) -> None:
        import duckdb

        self.name = f"DuckDB {duckdb.__version__}"
        self._connection = duckdb.connect()
        for extension in ("avro", "iceberg"):
            (directory,) = import_module(f"duckdb_extension_{extension}").__path__
            (file,) = Path(directory).rglob("*.duckdb_extension")
            self._connection.execute(f"LOAD '{file}'")
        self._connection.execute("SET TimeZone = 'UTC'")

    def rows(self, request: Request) -> Rows:
        moment = f", snapshot_from_id = {request['snapshot_id']}" if request.get("snapshot_id") else ""
        query = self.dialect.select(f"iceberg_scan('{request['location']}'{moment})", request)
        return _arrow_rows(self._connection.execute(query).to_arrow_table())


class PyIcebergReader(TableReader):
    """A StaticTable's scan."""

    def __init__(self) -> None:
        self.name = f"pyiceberg {version('pyiceberg')}"

    def rows(self, request: Request) -> Rows:
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(request["location"])
        options: dict[str, Any] = {"snapshot_id": request.get("snapshot_id")}
        if request.get("condition"):
            options["row_filter"] = _pyiceberg_filter(*request["condition"])
        if request.get("only_count"):
            return [(table.scan(**options).count(),)]
        return _arrow_rows(table.scan(selected_fields=tuple(request["columns"]), **options).to_arrow())


class _ClickHouseDialect(SqlDialect):
    casts: ClassVar = {"timestamptz": "DateTime64(6, 'UTC')", "timestamp": "DateTime64(6, 'UTC')", "date": "Date32"}


class ClickHouseReader(TableReader):
    """icebergLocal of the table's directory, with the metadata file named, in the process (chdb)."""

    dialect = _ClickHouseDialect()

    def __init__(self, directory: str) -> None:
        """`directory`: which has all tables below it: ClickHouse reads nothing elsewhere."""
        os.chdir(directory)
        self._chdb = import_module("chdb")
        ((release,),) = self._query("SELECT version()")
        self.name = f"ClickHouse {release.decode()} (chdb)"

    def rows(self, request: Request) -> Rows:
        directory, _, file = request["location"].removeprefix("file://").rpartition("/metadata/")
        table = f"icebergLocal('{directory}', SETTINGS iceberg_metadata_file_path = 'metadata/{file}')"
        settings = f", iceberg_snapshot_id = {request['snapshot_id']}" if request.get("snapshot_id") else ""
        return self._query(self.dialect.select(table, request), settings)

    def _query(self, query: str, settings: str = "") -> Rows:
        import pyarrow.ipc

        # Its strings are bytes, which need not be UTF-8.
        query = f"{query} SETTINGS output_format_arrow_string_as_string = 0{settings}"
        answer = self._chdb.query(query, "ArrowStream").bytes()
        # It gives nothing at all for no rows.
        return _arrow_rows(pyarrow.ipc.open_stream(bytes(answer)).read_all()) if answer else []


class DataFusionReader(TableReader):
    """Iceberg's Rust library (pyiceberg-core), as a table of DataFusion."""

    def __init__(self) -> None:
        self.name = f"DataFusion {version('datafusion')} with pyiceberg-core {version('pyiceberg-core')}"

    def rows(self, request: Request) -> Rows:
        if request.get("snapshot_id"):
            raise NotImplementedError("its table is of the current snapshot alone")
        context = import_module("datafusion").SessionContext()
        table = import_module("pyiceberg_core.datafusion").IcebergDataFusionTable(
            identifier=["lake", "t"], metadata_location=request["location"], file_io_properties={}
        )
        context.register_table("t", table)
        return _arrow_rows(context.sql(self.dialect.select("t", request)).to_arrow_table())


class PolarsReader(TableReader):
    """Its own reader of Iceberg tables, which pyiceberg plans."""

    def __init__(self) -> None:
        self.name = f"Polars {version('polars')}"

    def rows(self, request: Request) -> Rows:
        pl = import_module("polars")
        frame = pl.scan_iceberg(request["location"], reader_override="native", snapshot_id=request.get("snapshot_id"))
        if request.get("condition"):
            name, operator, kind, value = request["condition"]
            literal = _python_value(kind, value)
            column = pl.col(name)
            frame = frame.filter({"=": column == literal, "<": column < literal, ">=": column >= literal}[operator])
        if request.get("only_count"):
            return [(frame.select(pl.len()).collect().item(),)]
        return _arrow_rows(frame.select(request["columns"]).collect().to_arrow())


class DaftReader(TableReader):
    """Its own reader, which pyiceberg plans."""

    def __init__(self) -> None:
        self.name = f"Daft {version('daft')}"

    def rows(self, request: Request) -> Rows:
        from pyiceberg.table import StaticTable

        daft = import_module("daft")
        table = StaticTable.from_metadata(request["location"])
        frame = daft.read_iceberg(table, snapshot_id=request.get("snapshot_id"))
        if request.get("condition"):
            name, operator, kind, value = request["condition"]
            literal = daft.lit(_python_value(kind, value))
            column = daft.col(name)
            frame = frame.where({"=": column == literal, "<": column < literal, ">=": column >= literal}[operator])
        if request.get("only_count"):
            return [(frame.count_rows(),)]
        return _arrow_rows(frame.select(*request["columns"]).to_arrow())


def _python_value(kind: str, value: Any) -> Any:
    if kind in ("float", "double"):
        return float(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "date":
        return datetime.date.fromisoformat(value)
    return datetime.datetime.fromisoformat(value) if kind.startswith("timestamp") else value


def _pyiceberg_filter(name: str, operator: str, kind: str, value: Any) -> Any:
    from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan

    kinds: dict[str, Any] = {"=": EqualTo, "<": LessThan, ">=": GreaterThanOrEqual}
    # It has no literal of a decimal from text of another scale, nor of dates as Python has them.
    literal = value if kind == "date" or kind.startswith("timestamp") else _python_value(kind, value)
    return kinds[operator](name, literal)


def _arrow_rows(table: Any) -> Rows:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def started(name: str, directory: str) -> TableReader:
    """The engine of this name."""
    if name == "clickhouse":
        return ClickHouseReader(directory)
    readers = {
        "duckdb": DuckDBReader,
        "pyiceberg": PyIcebergReader,
        "datafusion": DataFusionReader,
        "polars": PolarsReader,
        "daft": DaftReader,
    }
    return readers.get(name, SparkReader)()


def main() -> None:
    # What an engine prints goes elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = started(sys.argv[1], sys.argv[2])
    print(json.dumps(engine.name), file=answers)
    for line in sys.stdin:
        try:
            answer = engine.answer(json.loads(line))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - panics of Rust are no Exception
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    # Its directory has modules of names that engines use as well.
    sys.path.pop(0)
    with contextlib.suppress(BrokenPipeError):
        main()
