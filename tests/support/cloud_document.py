"""What engines of a cloud read, in docs/cloud-engines/: `python -m tests.support.cloud_document` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.ops.reads.cloud_engines import CLOUD_ENGINES, CloudEngine, LakeNames, Way, cloud_statements
from mirror_pump.ops.reads.engine_answers import Feature, Verdict

PAGES = Path(__file__).resolve().parents[2] / "docs" / "cloud-engines"
_PART = re.compile(r"(<!-- (?P<name>[^:]+): begin -->\n).*?(<!-- (?P=name): end -->)", re.DOTALL)
_COLUMNS = (
    ("position deletes (2)", 2, Feature.POSITION_DELETES),
    ("equality deletes (2)", 2, Feature.EQUALITY_DELETES),
    ("deletion vectors (3)", 3, Feature.VECTORS),
    ("defaults of columns (3)", 3, Feature.DEFAULTS),
    ("variants (3)", 3, Feature.VARIANT),
)
_WORDS = {Verdict.EXACT: "yes", Verdict.REFUSED: "**no**", Verdict.WRONG: "**wrong**"}
EXAMPLE = LakeNames(
    "public",
    "orders",
    "s3://lake/shop",
    "s3://lake/shop/public/orders/metadata/00042-f3a1.metadata.json",
    "https://lake.example.com/iceberg",
    "mirror",
)


def written(page: str) -> str:
    """The page with its generated parts as they should be."""
    return _PART.sub(lambda part: "".join((part[1], _content(part["name"]), part[3])), page)


def parts(page: str) -> list[str]:
    """The names of the page's generated parts."""
    return [part["name"] for part in _PART.finditer(page)]


def statement_parts() -> Iterator[tuple[str, CloudEngine, Way]]:
    """The name of the part that shows statements, for all of them but those of further ways of an engine."""
    for engine in CLOUD_ENGINES.values():
        for way in list(engine.statements)[:1]:
            yield f"{engine.engine}, {way}", engine, way


def _content(name: str) -> str:
    if name == "abilities":
        return "".join(f"{line}\n" for line in _abilities())
    engine, way = next((engine, way) for part, engine, way in statement_parts() if part == name)
    return f"```sql\n{cloud_statements(engine, way, EXAMPLE)}\n```\n"


def _abilities() -> Iterator[str]:
    heads = ["", "by", "reaches", *(title for title, _, _ in _COLUMNS), "types that differ"]
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for engine in CLOUD_ENGINES.values():
        abilities = [_ability(engine, version, feature) for _, version, feature in _COLUMNS]
        types = "; ".join(f"`{kind}` {text}" for kind, text in engine.types.items())
        cells = [f"**{engine.name}**", ", ".join(engine.ways), ", ".join(engine.schemes), *abilities, types]
        yield f"| {' | '.join(cells)} |"


def _ability(engine: CloudEngine, version: int, feature: Feature) -> str:
    if version not in engine.answers:
        return "**no**"
    answer = engine.answers[version].get(feature)
    return "?" if answer is None else _WORDS[answer.verdict]


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
