"""Runs engines on tables with known rows, and judges what they read: `python -m tests.support.engine_runs`, of all
engines or of those that it is given.

An answer is exact, refused with the engine's text, or wrong. What concerns a feature is wrong if one answer to a
question about one of its tables is, else refused if one is: what an engine reads by luck alone it does not read.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.ops.reads.engine_answers import FILE, EngineAnswers, Feature, FeatureAnswer, Verdict, engine_answers
from tests.support import engine_process
from tests.support.engine_document import PAGE, stored_form, written
from tests.support.engine_tables import KnownTable, Question, known_tables

_ROOT = Path(__file__).resolve().parents[2]
_OWN = Path(sys.executable)
_PYTHONS: Mapping[str, Path] = {
    **dict.fromkeys(("spark", "duckdb", "pyiceberg", "clickhouse"), _OWN),
    **{
        name: _ROOT / "build" / "engines" / name / "bin" / "python"
        for name in ("spark-3.5", "datafusion", "polars", "daft")
    },
}
ENGINES = (*_PYTHONS, "trino")
_CHDB = _ROOT / "build" / "chdb"
_LONGEST_ERROR = 200

Request: TypeAlias = dict[str, Any]
Reply: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[Request], Reply]


class StartedEngine(Protocol):
    """An engine that answers."""

    @property
    def name(self) -> str:
        """With its version."""

    def ask(self, request: Request) -> Reply:
        """The answer, in the words of tests/support/engine_process.py."""


@dataclass(frozen=True)
class _EngineProcess:
    name: str
    process: subprocess.Popen[str]

    def ask(self, request: Request) -> Reply:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer: Reply = json.loads(self.process.stdout.readline() or '{"error": "the process ended"}')
        except BrokenPipeError:
            return {"error": "the process ended"}
        return answer


@contextmanager
def engine_process_of(engine: str, directory: Path) -> Iterator[StartedEngine]:
    """An engine in a process of its own, for tables below a directory."""
    environment = {**os.environ, "TZ": "UTC", "JAVA_HOME": str(find_java_home()), "DAFT_PROGRESS_BAR": "0"}
    environment.pop("SPARK_HOME", None)
    if engine == "clickhouse":
        environment["PYTHONPATH"] = str(_CHDB)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [_PYTHONS[engine], engine_process.__file__, engine, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        try:
            assert process.stdout is not None
            name = process.stdout.readline()
            if not name:
                log.seek(0)
                raise RuntimeError(f"{engine} did not start: {log.read()[-2000:]}")
            yield _EngineProcess(json.loads(name), process)
        finally:
            process.kill()
            process.communicate()


def request_of(table: KnownTable, question: Question) -> Request:
    """A question, as the engine's process gets it."""
    request: Request = {"location": table.location, "columns": list(question.columns)}
    if question.condition is not None:
        condition = question.condition
        kind = question.columns[condition.column]
        value = condition.value if isinstance(condition.value, bool | int) else _literal(condition.value)
        request["condition"] = [condition.column, condition.operator, str(kind), value]
    if question.snapshot_id is not None:
        request["snapshot_id"] = question.snapshot_id
    if question.documents:
        request["documents"] = sorted(question.documents)
    if question.only_count:
        request["only_count"] = True
    return request


def _literal(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def judge(question: Question, reply: Reply) -> FeatureAnswer:
    """What an engine's reply to a question is worth."""
    if "error" in reply:
        return FeatureAnswer(Verdict.REFUSED, _refusal(str(reply["error"])))
    if question.only_count:
        if reply["count"] == len(question.rows):
            return FeatureAnswer(Verdict.EXACT)
        return FeatureAnswer(Verdict.WRONG, f"{question.name}: counted {reply['count']} rows of {len(question.rows)}")
    expected, rows = (
        Counter(_comparable_row(question, row) for row in table) for table in (question.rows, reply["rows"])
    )
    if rows == expected:
        return FeatureAnswer(Verdict.EXACT)
    missing, further = (
        sorted(map(str, (left - right).elements())) for left, right in ((expected, rows), (rows, expected))
    )
    texts = [
        f"{len(found)} {what} such as {found[0]}"
        for found, what in ((missing, "missing"), (further, "too many"))
        if found
    ]
    return FeatureAnswer(Verdict.WRONG, f"{question.name}: {', '.join(texts)}"[:_LONGEST_ERROR])


def _comparable_row(question: Question, row: Sequence[Any]) -> tuple[Any, ...]:
    named = zip(question.columns.items(), row, strict=True)
    return tuple(
        _document(value) if name in question.documents else _comparable(kind, value) for (name, kind), value in named
    )


def _document(value: str | None) -> str | None:
    """Equal for what is one JSON value, numbers by all their digits."""
    if value is None:
        return None
    try:
        parsed = json.loads(value, parse_float=Decimal, parse_int=Decimal)
    except ValueError:
        return f"no JSON: {value}"
    return json.dumps(parsed, sort_keys=True, default=lambda number: {"number": str(number.normalize())})


def _refusal(text: str) -> str:
    """An engine's words in one line, without names that are others in each run."""
    line = re.sub(r"\S*/([^/\s]+\.(parquet|puffin|avro|json))", r"FILE.\2", " ".join(text.split()))
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]} ..."


def _comparable(kind: ColumnType, value: Any) -> Any:
    """Equal for what is one value of a type: of the heap's in Python, or of an engine's reply."""
    if isinstance(value, dict):
        value = bytes.fromhex(value["bytes"])
    if value is None:
        return None
    if kind.kind is Kind.LIST:
        assert kind.element is not None
        return tuple(_comparable(kind.element, element) for element in value)
    return _COMPARABLE[kind.kind](value)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _binary(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _micros(value: str | datetime.datetime) -> int:
    moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


_COMPARABLE: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.BOOLEAN: bool,
    Kind.INT: int,
    Kind.LONG: int,
    Kind.FLOAT: lambda value: struct.pack("f", float(value)),
    Kind.DOUBLE: lambda value: struct.pack("d", float(value)),
    Kind.DECIMAL: lambda value: Decimal(str(value)),
    Kind.STRING: _text,
    Kind.BINARY: _binary,
    Kind.UUID: lambda value: uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value),
    Kind.DATE: lambda value: str(value)[:10],
    Kind.TIMESTAMP: _micros,
    Kind.TIMESTAMPTZ: _micros,
}


def answers_of(engine: StartedEngine, tables: Iterable[KnownTable]) -> dict[int, dict[Feature, FeatureAnswer]]:
    """The worst answer for each version and feature."""
    answers: dict[int, dict[Feature, FeatureAnswer]] = {}
    for table in tables:
        for question in table.questions:
            answer = judge(question, engine.ask(request_of(table, question)))
            features = answers.setdefault(table.version, {})
            if table.feature not in features or answer.verdict > features[table.feature].verdict:
                features[table.feature] = answer
                if answer.verdict is not Verdict.EXACT:
                    print(f"{engine.name}, {table.name}: {answer.verdict.name.lower()}: {answer.text}", flush=True)
    return answers


@contextmanager
def _started(engine: str, directory: Path, tables: Sequence[KnownTable]) -> Iterator[StartedEngine]:
    if engine != "trino":
        with engine_process_of(engine, directory) as started:
            yield started
        return
    from tests.support.engine_trino import started_trino

    with started_trino(directory, tables) as started:
        yield started


def _store(answers: EngineAnswers) -> None:
    """Stores an engine's answers in the place of its former ones."""
    stored = engine_answers() | {answers.engine: answers}
    document = {"engines": [stored_form(engine) for engine in stored.values()]}
    FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Asks the engines that are named, or all, and writes their answers and the document."""
    unknown = set(arguments) - set(ENGINES)
    if unknown:
        sys.exit(f"no engine {', '.join(sorted(unknown))}: {', '.join(ENGINES)}")
    with tempfile.TemporaryDirectory(prefix="mirror-pump-engines-") as name:
        directory = Path(name)
        tables = list(known_tables(directory.as_uri()))
        for engine in arguments or ENGINES:
            with _started(engine, directory, tables) as started:
                _store(EngineAnswers(engine, started.name, answers_of(started, tables)))
                print(f"{started.name}: done", flush=True)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
