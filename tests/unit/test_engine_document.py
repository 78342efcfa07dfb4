"""What docs/readers.md says of engines is what `make engines` stored."""

from __future__ import annotations

from mirror_pump.cli.commands.connect import ReaderEngine
from mirror_pump.ops.reads.cloud_engines import CLOUD_ENGINES
from mirror_pump.ops.reads.engine_answers import EngineAnswers, engine_answers
from tests.support.engine_document import PAGE, stored_form, written


def test_the_page_says_what_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run `python -m tests.support.engine_document`"


def test_answers_are_known_of_each_engine_that_connect_names() -> None:
    answers = engine_answers()
    clouds = {name for name, engine in CLOUD_ENGINES.items() if engine.statements}
    assert clouds < {engine.value for engine in ReaderEngine} <= set(answers) | clouds
    for known in answers.values():
        assert EngineAnswers.from_json(stored_form(known)) == known
        assert set(known.answers) == {2, 3}
