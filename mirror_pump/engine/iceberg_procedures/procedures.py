"""Typed functions for Iceberg's maintenance procedures, called through Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from mirror_pump.database.quoting import spark_identifier, spark_literal
from mirror_pump.engine.iceberg_procedures.rewrite_request import RewriteRequest
from mirror_pump.engine.spark_runtime.session import CATALOG, FORKS
from mirror_pump.errors import CommitConflict, LakeError, TaskFailed
from mirror_pump.model import TableName

_CONFLICTS = ("ValidationException", "CommitFailedException")
"""Iceberg exceptions that another commit causes; the procedure has to be retried on the table's new state."""

_IN_DOUBT = ("08", "57P0", "40003")
"""How SQLSTATEs begin after which a commit may have landed: the connection was lost, or the catalog could not tell
(sql/functions/engine_commits.sql). The procedure has to be retried as well, and finds less to do if it has."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_LINES = 2

_FILE_LIST = StructType(
    [
        StructField("file_path", StringType(), nullable=False),
        StructField("last_modified", TimestampType(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Procedures:
    """Procedures of a catalog. The Spark session needs Iceberg's jars (see spark_runtime/session.py)."""

    spark: SparkSession
    session_at: Callable[[str], SparkSession] | None = None
    """Returns the session in which the catalog reaches the files of a table at this location; None: `spark` does."""
    catalog: str = CATALOG

    def at(self, location: str) -> Procedures:
        """The procedures for a table at this location. Raises LakeError if there are no credentials for it, or if the
        catalog does not answer."""
        if self.session_at is None:
            return self
        with procedure_errors("opening the catalog for", location):
            return Procedures(self.session_at(location), None, self.catalog)

    @property
    def on_forks(self) -> Procedures:
        """The procedures for the forks of tables, which have the names of their tables."""
        return replace(self, catalog=FORKS)

    def rewrite_data_files(self, table: TableName, rewrite: RewriteRequest) -> dict[str, int]:
        """Merges data files and applies their deletes; returns the procedure's counts. Raises CommitConflict if another
        commit to the same pointer interfered; then nothing was changed."""
        arguments = {"options": _map(rewrite.options())}
        if rewrite.sort_by:
            order = ", ".join(f"{spark_identifier(name)} ASC NULLS FIRST" for name in rewrite.sort_by)
            arguments |= {"strategy": "'sort'", "sort_order": spark_literal(order)}
        elif self._is_sorted(table):
            arguments |= {"strategy": "'sort'"}
        return self._counts("rewrite_data_files", table, arguments)

    def rewrite_position_deletes(self, table: TableName, min_input_files: int) -> dict[str, int]:
        """Merges position-delete files and drops positions in removed data files. Raises CommitConflict as above."""
        options = {"min-input-files": str(min_input_files), "max-concurrent-file-group-rewrites": "1"}
        return self._counts("rewrite_position_delete_files", table, {"options": _map(options)})

    def expire_snapshots(self, table: TableName, snapshot_ids: Sequence[int]) -> dict[str, int]:
        """Removes exactly these snapshots from the history, in one commit, and deletes the files that no other snapshot
        needs. Returns their counts."""
        with procedure_errors("expiring snapshots of", table):
            actions = self.spark._jvm.org.apache.iceberg.spark.actions.SparkActions
            action = actions.get(self.spark._jsparkSession).expireSnapshots(self._java_table(table))
            action.option("stream-results", "true")
            # The default would expire everything older than five days, pinned or not.
            action.expireOlderThan(0)
            for snapshot_id in snapshot_ids:
                action.expireSnapshotId(snapshot_id)
            result = action.execute()
        return {
            "deleted_data_files_count": result.deletedDataFilesCount(),
            "deleted_position_delete_files_count": result.deletedPositionDeleteFilesCount(),
            "deleted_equality_delete_files_count": result.deletedEqualityDeleteFilesCount(),
            "deleted_manifest_files_count": result.deletedManifestsCount(),
            "deleted_manifest_lists_count": result.deletedManifestListsCount(),
            "deleted_statistics_files_count": result.deletedStatisticsFilesCount(),
        }

    def unreferenced(self, table: TableName, locations: Sequence[str]) -> list[str]:
        """Those of the files that nothing in the table's metadata refers to, by a dry run of remove_orphan_files."""
        view = f"mirror_pump_files_{uuid.uuid4().hex}"
        # The caller has checked the files' age, so the procedure gets a date at which all are old enough.
        rows = [(location, _EPOCH) for location in locations]
        with procedure_errors("looking for unreferenced files of", table):
            self.spark.createDataFrame(rows, _FILE_LIST).createOrReplaceTempView(view)
            try:
                orphans = self.spark.sql(
                    f"CALL {self.catalog}.system.remove_orphan_files(table => {spark_literal(_quoted(table))},"
                    f" file_list_view => {spark_literal(view)}, dry_run => true)"
                ).collect()
            finally:
                self.spark.catalog.dropTempView(view)
        return [str(row[0]) for row in orphans]

    def _is_sorted(self, table: TableName) -> bool:
        """Whether the table has an order, in which its rows are to be written."""
        with procedure_errors("looking at", table):
            return bool(self._java_table(table).sortOrder().isSorted())

    def _java_table(self, table: TableName) -> Any:
        """Iceberg's Java object of the table, for operations without a procedure."""
        name = f"{self.catalog}.{_quoted(table)}"
        # Makes this session load its catalog. From outside, it would be looked up in whichever session is active.
        self.spark.table(name)
        return self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, name)

    def _counts(self, procedure: str, table: TableName, arguments: Mapping[str, str]) -> dict[str, int]:
        parameters = ", ".join(
            f"{name} => {value}" for name, value in {"table": spark_literal(_quoted(table)), **arguments}.items()
        )
        with procedure_errors(f"running {procedure} on", table):
            rows = self.spark.sql(f"CALL {self.catalog}.system.{procedure}({parameters})").collect()
        return {name: int(value or 0) for name, value in rows[0].asDict().items()} if rows else {}


@contextmanager
def procedure_errors(doing: str, table: TableName | str) -> Iterator[None]:
    """Turns Spark's errors of the block into ours."""
    try:
        yield
    except Py4JNetworkError as error:
        raise TaskFailed(
            f"Spark's JVM ended while {doing} {table}: {error}",
            "start maintenance again; if it happens again, give it more memory (--maintain-memory)",
        ) from error
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
        reason = " | ".join(lines[:_SHOWN_LINES])
        if _sql_state(error).startswith(_IN_DOUBT):
            raise CommitConflict(f"the catalog's answer was lost while {doing} {table}: {reason}") from error
        if any(name in str(error) for name in _CONFLICTS):
            raise CommitConflict(f"another commit interfered while {doing} {table}: {reason}") from error
        raise LakeError(
            f"Spark failed while {doing} {table}: {reason}",
            "see Spark's log for the full error; anything committed is in the maintenance journal",
        ) from error


def _sql_state(error: PySparkException | Py4JError) -> str:
    """SQLSTATE of the database's error behind this one; empty if there is none."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        if cause.getClass().getName() == "org.postgresql.util.PSQLException":
            return str(cause.getSQLState())
        cause = cause.getCause()
    return ""


def _quoted(table: TableName) -> str:
    return f"{spark_identifier(table.schema)}.{spark_identifier(table.name)}"


def _map(options: Mapping[str, str]) -> str:
    return f"map({', '.join(f'{spark_literal(key)}, {spark_literal(value)}' for key, value in options.items())})"
