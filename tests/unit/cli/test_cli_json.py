"""docs/cli-json.md is what the types say that print JSON."""

from __future__ import annotations

import pytest

from tests.support.cli_json import PAGE, Part, parts, text_of, written


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "python -m tests.support.cli_json"


def test_a_key_of_no_type_is_not_passed_over() -> None:
    doctor = parts()["doctor"]
    unknown = Part({**doctor.example, "more": 1}, doctor.keys)
    with pytest.raises(LookupError, match="more"):
        text_of(unknown)


def test_a_docstring_becomes_a_row() -> None:
    resyncs = parts()["resyncs"]
    assert "| `seconds_left` | At the speed so far; null until something is copied |" in text_of(resyncs)
    assert "`copy`: It is copied again, from the beginning" in text_of(parts()["resync"])


def test_a_page_without_a_part_is_refused() -> None:
    with pytest.raises(LookupError, match="resyncs"):
        written("<!-- status: begin -->\n<!-- status: end -->\n")
