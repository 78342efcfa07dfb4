"""Tables of known rows by which engines are judged (`make engines`): the project's own reader and two engines read some
of them, and a wrong answer is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from decoders.variant import document_texts
from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.reads.engine_answers import Feature, FeatureAnswer, Verdict
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from tests.support.engine_process import DuckDBReader, PyIcebergReader, cell
from tests.support.engine_runs import answers_of, judge, request_of
from tests.support.engine_tables import KnownTable, known_tables

_STORAGE = StorageOptions(fsync=False)


@dataclass(frozen=True)
class _OwnProcess:
    """An engine within this process."""

    name: str
    answer: Callable[[dict[str, Any]], dict[str, Any]]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.answer(request)
        except Exception as error:  # noqa: BLE001 - what an engine raises is its answer
            return {"error": repr(error)}


def _own_answer(request: dict[str, Any]) -> dict[str, Any]:
    """That of the lake library's scan."""
    from pyiceberg.expressions import AlwaysTrue

    from tests.support.engine_process import _pyiceberg_filter

    condition = _pyiceberg_filter(*request["condition"]) if "condition" in request else AlwaysTrue()
    metadata = read_any_version(request["location"], _STORAGE)
    plan = read_plan(metadata, _STORAGE, condition, request.get("snapshot_id"), request["columns"])
    rows = Scan(plan, request["location"]).to_arrow(1)
    if request.get("only_count"):
        return {"count": rows.num_rows}
    for name in request.get("documents", ()):
        texts = document_texts(rows[name].combine_chunks())
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return {"rows": [[cell(value) for value in row.values()] for row in rows.to_pylist()]}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[KnownTable]:
    directory: Path = tmp_path_factory.mktemp("known")
    return list(known_tables(directory.as_uri()))


@pytest.mark.further
def test_the_projects_own_reader_is_exact(tables: list[KnownTable]) -> None:
    answers = answers_of(_OwnProcess("mirror-pump", _own_answer), tables)
    assert {answer for features in answers.values() for answer in features.values()} == {FeatureAnswer(Verdict.EXACT)}
    assert set(answers[2]) == set(answers[3]) - {
        *(Feature.VECTORS, Feature.UPGRADED, Feature.MOVED_ROWS, Feature.LINEAGE, Feature.DEFAULTS, Feature.VARIANT)
    }


def test_wrong_answers_and_refusals_are_told_apart(tables: list[KnownTable]) -> None:
    chosen = [table for table in tables if table.name in ("v3-deletion-vectors-one", "v3-equality-deletes-keys")]
    duckdb, pyiceberg = DuckDBReader(), PyIcebergReader()
    vectors, equality = Feature.VECTORS, Feature.EQUALITY_DELETES
    assert answers_of(_OwnProcess("DuckDB", duckdb.answer), chosen)[3] == {
        vectors: FeatureAnswer(Verdict.EXACT),
        equality: FeatureAnswer(Verdict.EXACT),
    }
    answers = answers_of(_OwnProcess("pyiceberg", pyiceberg.answer), chosen)[3]
    assert answers[vectors] == FeatureAnswer(Verdict.EXACT)
    assert answers[equality].verdict is Verdict.REFUSED
    assert "does not yet support equality deletes" in answers[equality].text
    for question in next(table for table in chosen if table.feature is vectors).questions:
        known = chosen[0] if chosen[0].feature is vectors else chosen[1]
        reply = duckdb.answer(request_of(known, question))
        assert judge(question, reply) == FeatureAnswer(Verdict.EXACT)
        further = replace(question, rows=(*question.rows, (1, "not there")))
        assert judge(further, reply).verdict is Verdict.WRONG
        if question.rows and not question.only_count:
            (key, note), *others = question.rows
            changed = judge(replace(question, rows=((key, f"not {note}"), *others)), reply)
            assert changed.verdict is Verdict.WRONG
            assert "1 missing" in changed.text
