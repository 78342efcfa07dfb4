"""Which engine reads what, in docs/readers.md: `python -m tests.support.engine_document` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror_pump.ops.reads.engine_answers import TITLES, EngineAnswers, Feature, FeatureAnswer, Verdict, engine_answers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "readers.md"
_BEGIN, _END = "<!-- engines: begin -->\n", "<!-- engines: end -->"


def written(page: str) -> str:
    """The page with its generated part as it should be. Raises LookupError if the page has no such part."""
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise LookupError("the page has no part about engines")
    return "".join((head, begin, "\n".join(_lines(list(engine_answers().values()))), "\n", end, tail))


def _lines(engines: Sequence[EngineAnswers]) -> Iterator[str]:
    names = ", ".join(engine.name for engine in engines)
    yield f"Asked were {names}. An engine that a line does not name is **exact** there."
    yield ""
    yield "| what | version | refused by | **wrong** |"
    yield "| --- | --- | --- | --- |"
    for feature, title in TITLES.items():
        by_engines: dict[tuple[str, str], list[str]] = {}
        for version in sorted({version for engine in engines for version in engine.answers}):
            answers = {engine.name: engine.answers.get(version, {}).get(feature) for engine in engines}
            if any(answers.values()):
                cells = (_names(answers, Verdict.REFUSED), _names(answers, Verdict.WRONG))
                by_engines.setdefault(cells, []).append(str(version))
        for (refused, wrong), versions in by_engines.items():
            yield f"| {title} | {', '.join(versions)} | {refused} | {wrong} |"
    yield ""
    yield "What is wrong:"
    yield ""
    for engine in engines:
        for feature, title in TITLES.items():
            yield from _wrong_answers(engine, feature, title)


def _names(answers: Mapping[str, FeatureAnswer | None], verdict: Verdict) -> str:
    """The engines with this verdict, by the first words of their names; that of Spark has its version."""
    named = (name for name, answer in answers.items() if answer is not None and answer.verdict is verdict)
    return ", ".join(" ".join(name.split()[: 2 if name.startswith("Spark") else 1]) for name in named)


def _wrong_answers(engine: EngineAnswers, feature: Feature, title: str) -> Iterator[str]:
    """A line for each wrong answer; one for all format versions in which it is the same."""
    versions: dict[FeatureAnswer, list[str]] = {}
    for version, answers in engine.answers.items():
        if feature in answers and answers[feature].verdict is Verdict.WRONG:
            versions.setdefault(answers[feature], []).append(str(version))
    for answer, same in versions.items():
        text = answer.text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
        yield f"- {engine.name}, {title} ({' and '.join(same)}): `{text}`"


def stored_form(stored: EngineAnswers) -> dict[str, Any]:
    """As `EngineAnswers.from_json` reads it."""
    answers = {
        str(version): {
            feature.value: {"verdict": answer.verdict.name.lower()} | ({"text": answer.text} if answer.text else {})
            for feature, answer in features.items()
        }
        for version, features in stored.answers.items()
    }
    return {"engine": stored.engine, "name": stored.name, "answers": answers}


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
