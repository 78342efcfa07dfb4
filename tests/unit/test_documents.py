"""The documentation holds together: links lead somewhere, words keep their meaning, no page is missing from the
index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from mirror_pump.pipeline.flow.steps import Level, Step

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_PROOF = _DOCS / "proof.md"
_TROUBLESHOOTING = _DOCS / "troubleshooting.md"
_PAGES = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted(_DOCS.rglob("*.md"))]

_GLOSSARY_LIMIT = 40
"""The number of terms that a newcomer may be asked to learn."""

_LETTERS = re.compile(r"(?<![\w/.=-])(?:F|S|T|L0|s0)(?![\w/'=-])")
"""The notation of the proof. `decimal(P,S)` and the like are in code spans, which are ignored."""


def _prose(page: Path) -> str:
    """The page without code blocks and code spans."""
    text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]+`", "", text)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        repeated = sum(
            anchor == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", anchor) is not None for anchor in found
        )
        found.add(f"{slug}-{repeated}" if repeated else slug)
    return found


def _links(page: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a page: path and anchor, either of which may be empty."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for path, anchor in _links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_paths_that_are_named_exist(page: Path) -> None:
    """In a code span: a path below one of the folders that are named here."""
    folders = "tests|mirror_pump|docs|sql|decoders|deploy|compose"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    missing = [path for path in named if not (_ROOT / path).exists()]
    assert not missing


def test_columns_of_examples_need_no_quotes_in_duckdb() -> None:
    """Whoever tries an example queries it by `mirror-pump sql` next."""
    reserved = {
        word
        for (word,) in duckdb.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
        ).fetchall()
    }
    columns = {
        (page.name, part.split()[0].lower())
        for page in _PAGES
        for block in re.findall(r"^```sql\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for table in re.findall(r"CREATE TABLE [\w.]+ \((.*?)\)(?= PARTITION|;|$)", block, re.MULTILINE | re.DOTALL)
        for part in re.split(r",(?![^(]*\))", table)
        if part.strip() and not re.match(r"\s*(?:PRIMARY KEY|UNIQUE|LIKE|CHECK|FOREIGN)\b", part)
    }
    assert {column for _, column in columns} >= {"id", "created_at", "booked", "amount"}
    assert not [(page, column) for page, column in sorted(columns) if column in reserved]


@pytest.mark.parametrize("page", [page for page in _PAGES if page != _PROOF], ids=str)
def test_the_letters_of_the_proof_stay_in_the_proof(page: Path) -> None:
    assert _LETTERS.findall(_prose(page)) == []


def test_the_proof_explains_its_letters() -> None:
    explained = re.findall(r"^\| (\w+) \|", _PROOF.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(_LETTERS.findall(_prose(_PROOF))) <= set(explained)


def test_every_page_is_in_the_map() -> None:
    index = _DOCS / "index.md"
    linked = {(index.parent / path).resolve() for path, _ in _links(index)}
    assert {page for page in _PAGES if page != index} <= linked


def test_the_glossary_is_short_and_explains_each_term_once() -> None:
    rows = re.findall(r"^\| (\*\*.+?) \|", (_DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert 0 < len(rows) <= _GLOSSARY_LIMIT
    terms = [term for row in rows for term in re.findall(r"\*\*(.+?)\*\*", row)]
    assert len(terms) == len(set(terms))


def _printed_texts() -> str:
    """The code, with adjacent string literals joined, and without `{...}` and `%s`."""
    sources = [*(_ROOT / "mirror_pump").rglob("*.py"), *(_ROOT / "sql").rglob("*.sql")]
    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_every_symptom_is_a_text_that_the_program_prints() -> None:
    """The first cells of tables of `status` messages and of errors; `...` stands for a value."""
    code = _printed_texts()
    symptoms = 0
    for table in re.split(r"\n\n", _TROUBLESHOOTING.read_text(encoding="utf-8")):
        head, *rows = table.splitlines()
        if not re.match(r"\| (error|.*says) \|", head):
            continue
        for row in rows[1:]:
            for symptom in re.findall(r"`([^`]+)`", row.split("|")[1]):
                symptoms += 1
                for part in symptom.split("..."):
                    assert part.strip() in code, f"nothing prints {part!r} any more"
    assert symptoms > 40


def test_every_warning_and_error_of_the_log_is_explained() -> None:
    text = _TROUBLESHOOTING.read_text(encoding="utf-8")
    loud = [step.value for step in Step if step.level in (Level.WARNING, Level.ERROR)]
    assert loud
    assert [step for step in loud if f"`{step}`" not in text] == []
