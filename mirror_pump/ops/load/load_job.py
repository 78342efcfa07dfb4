"""One labelled load: its rows are staged in the session's own temporary table, and written in one transaction with the
label.

Invariant: the rows of a load and its label are committed together, once. Whatever is interrupted before the commit
leaves nothing behind, whatever comes after it with the same label gets the recorded result. `content` binds a label to
the bytes, the mode, the format and the columns of its load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, BinaryIO, TypeAlias

import psycopg

from mirror_pump.backoff import Backoff, Retries
from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.ops.load.content_stream import ContentStream, as_it_is, seekable
from mirror_pump.ops.load.load_input import InputError, LoadBatch, UnreadableRow, read_batches
from mirror_pump.ops.load.postgres_texts import staged_rows
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.source.connect import PgConnection, as_source_error, connect, is_connection_loss, source_errors
from mirror_pump.source.loads import labels
from mirror_pump.source.loads.filtered_rows import RowFilter, TooManyFiltered
from mirror_pump.source.loads.load_target import LoadTarget, read_target
from mirror_pump.source.loads.load_writes import LoadCounts, LoadMode, LoadWrites
from mirror_pump.source.loads.staging import StagingTable

_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_ATTEMPTS = 5
"""Attempts at a transaction that deadlocked with others."""
_PAUSE = Backoff(0.1, 2.0, 0.5)


@dataclass(frozen=True)
class LoadRequest:
    """What to load, and how."""

    table: str
    """As PostgreSQL reads the name."""
    label: str
    form: FileFormat
    mode: LoadMode = LoadMode.UPSERT
    columns: tuple[str, ...] | None = None
    """Names of the columns of a CSV file without a header; of other files those that are loaded. None: all."""
    max_filtered: int = 0
    """Rows that may be left out."""

    def content(self, digest: str) -> dict[str, Any]:
        """What the label stands for."""
        columns = None if self.columns is None else list(self.columns)
        return {"digest": digest, "mode": self.mode.value, "format": self.form.value, "columns": columns}


@dataclass(frozen=True)
class LoadResult:
    """The load that is committed under a label."""

    table: str
    label: str
    replayed: bool
    """It had been committed before, and nothing was changed."""
    outcome: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The answer of the command and of the port (docs/cli-json.md)."""
        return {
            "table": self.table,
            "label": self.label,
            "state": "committed",
            "replayed": self.replayed,
            **self.outcome,
        }


Opener: TypeAlias = Callable[[], AbstractContextManager[BinaryIO]]
"""Opens a file of a load."""


class LoadStep(StrEnum):
    """Where a load is."""

    READING = "reading"
    """The input is read into the session's temporary table."""
    WRITING = "writing"
    """The rows are written to the table."""
    COMMITTED = "committed"


@dataclass(frozen=True)
class LoadProgress:
    """How far a load is."""

    step: LoadStep
    table: str
    rows: int
    """Rows read so far."""
    bytes_done: int
    bytes_total: int
    """0 if unknown."""
    waits_for: str = ""


def load(
    dsn: str,
    request: LoadRequest,
    stream: BinaryIO | Sequence[Opener],
    *,
    most_bytes: int | None = None,
    lock_timeout: float | None = None,
    total_bytes: int = 0,
    observe: Callable[[LoadProgress], None] = lambda _: None,
) -> LoadResult:
    """Load the rows of `stream`, or of several files one after the other, unless a load with the label is committed.

    `most_bytes`: bytes that the input may have. `lock_timeout`: seconds to wait for each lock; without it as long as it
    takes. `total_bytes`: what there is to read, for `observe`. Raises TooManyFiltered, LabelTaken, LabelBusy,
    ContentTooLarge, TableError, InputError, UsageError, SourceError. After ConnectionLost nobody knows whether the load
    is committed: the same load again tells.
    """
    if not _LABEL.fullmatch(request.label):
        raise UsageError("a label has 1 to 200 characters, none of them a control character", "such as etl-2026-11-21")
    if request.max_filtered < 0:
        raise UsageError("the number of rows that may be filtered is not negative")
    with connect(dsn, autocommit=True, application_name="mirror-pump-load") as connection:
        with source_errors("preparing a load"):
            # Ordinary DML: policies of row security apply.
            connection.execute("SET row_security = on")
            if lock_timeout is not None:
                connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{lock_timeout * 1000:.0f}ms",))
        inputs = stream if isinstance(stream, Sequence) else [lambda: nullcontext(stream)]
        target, content = read_target(connection, request.table), ContentStream(most_bytes)
        return _LoadJob(connection, target, request, inputs, content, total_bytes, observe).run()


class _LoadJob:
    def __init__(
        self,
        connection: PgConnection,
        target: LoadTarget,
        request: LoadRequest,
        inputs: Sequence[Opener],
        content: ContentStream,
        total_bytes: int,
        observe: Callable[[LoadProgress], None],
    ) -> None:
        self._connection = connection
        self._target = target
        self._request = request
        self._inputs = inputs
        self._input = content
        self._total_bytes = total_bytes
        self._observe = observe
        self._filter = RowFilter(str(target.name), request.max_filtered)
        self._rows = 0

    def run(self) -> LoadResult:
        """Returns the committed load. Raises the errors of `load`."""
        try:
            return self._run()
        except (labels.LabelTaken, labels.LabelBusy):
            raise
        except psycopg.Error as error:
            converted = as_source_error(error, f"loading {self._target.name}")
            if not is_connection_loss(error):
                self._record_failure(converted)
            raise converted from error
        except MirrorPumpError as error:
            self._record_failure(error)
            raise

    def _run(self) -> LoadResult:
        if labels.recorded(self._connection, self._target, self._request.label) is not None:
            # Only a load of the same content gets the result.
            for _ in self._contents():
                pass
            content = self._request.content(self._input.digest())
            found = labels.recorded(self._connection, self._target, self._request.label, content)
            if found is not None:
                return self._result(found, replayed=True)
            raise labels.LabelBusy(
                f"{self._target.name}: the label {self._request.label!r} was swept meanwhile", "load again"
            )
        staging = self._stage()
        content = self._request.content(self._input.digest())
        retries = Retries(_PAUSE)
        while True:
            self._report(LoadStep.WRITING)
            try:
                result = self._commit(staging, content)
                self._report(LoadStep.COMMITTED)
                return result
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                if retries.failures + 1 == _ATTEMPTS:
                    raise
                retries.failed()
                retries.wait()

    def _stage(self) -> StagingTable | None:
        """Copies the input into the staging table, and reads it to its end. None for an input without rows or names."""
        request, staging = self._request, None
        whole = seekable if request.form is FileFormat.PARQUET else as_it_is
        for content in self._contents():
            before = self._rows
            with whole(content) as stream:
                for part in read_batches(stream, request.form, request.columns):
                    if isinstance(part, UnreadableRow):
                        self._rows += 1
                        self._filter.reject(before + part.number, part.reason)
                        continue
                    if staging is None:
                        staging = StagingTable(self._connection, self._columns(part.rows.schema.names))
                    self._add(part, before, staging)
        if staging is not None:
            staging.complete()
        return staging

    def _add(self, batch: LoadBatch, before: int, staging: StagingTable) -> None:
        """Stages rows of a file that comes after `before` rows."""
        missing = [column.name for column in staging.columns if column.name not in batch.rows.schema.names]
        if missing:
            raise InputError(
                f"row {before + batch.numbers[0]}: its file has no column {', '.join(missing)}, as the first one has",
                "load files of different columns by loads of their own",
            )
        self._rows += batch.rows.num_rows
        numbers = [before + number for number in batch.numbers] if before else batch.numbers
        staging.add(staged_rows(replace(batch, numbers=numbers), staging.columns), self._filter)
        self._report(LoadStep.READING)

    def _contents(self) -> Iterator[ContentStream]:
        """The input, for each of its files once; what the caller does not read is read, too."""
        for opened in self._inputs:
            with opened() as stream:
                self._input.begin(stream)
                yield self._input
                self._input.drain()

    def _report(self, step: LoadStep) -> None:
        table = str(self._target.name)
        self._observe(LoadProgress(step, table, self._rows, self._input.count, self._total_bytes))

    def _columns(self, names: Sequence[str]) -> Any:
        return self._target.chosen(names, key_only=self._request.mode is LoadMode.DELETE)

    def _commit(self, staging: StagingTable | None, content: dict[str, Any]) -> LoadResult:
        label, row_filter, counts = self._request.label, self._filter.copy(), LoadCounts()
        with self._connection.transaction():
            found = labels.begin(self._connection, self._target, label, content)
            if found is not None:
                return self._result(found, replayed=True)
            if staging is not None:
                writes = LoadWrites(self._connection, self._target, staging, self._request.mode, row_filter)
                counts = writes.write()
            labels.finish(self._connection, self._target, label, self._outcome(content, counts, row_filter))
            found = labels.recorded(self._connection, self._target, label, content)
            assert found is not None
        return self._result(found, replayed=False)

    def _outcome(self, content: dict[str, Any], counts: LoadCounts, row_filter: RowFilter) -> dict[str, Any]:
        return {
            "content": content,
            "bytes": self._input.count,
            "rows_read": self._rows,
            "rows_loaded": counts.loaded,
            "rows_below_cutline": counts.below_cutline,
            "rows_superseded": counts.superseded,
            "rows_not_found": counts.not_found,
            "rows_filtered": row_filter.count,
            "filtered": [row.to_json() for row in row_filter.shown],
        }

    def _result(self, outcome: dict[str, Any], *, replayed: bool) -> LoadResult:
        return LoadResult(str(self._target.name), self._request.label, replayed, outcome)

    def _record_failure(self, error: MirrorPumpError) -> None:
        """For whoever looks at the label; the label stays free."""
        filtered = error.filtered if isinstance(error, TooManyFiltered) else ()
        outcome = {"error": str(error), "filtered": [row.to_json() for row in filtered]}
        with suppress(psycopg.Error):
            labels.fail(self._connection, self._target, self._request.label, outcome)
