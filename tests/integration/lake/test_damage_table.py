"""docs/damage.md is what `make damage` finds: a few kinds of each group."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from proofs.damage.document import Finding, read_document
from proofs.damage.observers import Observer
from proofs.damage.report import chosen, run_all

_SAMPLE = {
    ("data file", "removed"),
    ("manifest", "all zeroes"),
    ("entry of a data file", "twice"),
    ("what metadata says", "an older snapshot is the current one"),
    ("pointer", "of another kind: a view"),
    ("frontier", "of the mirror raised"),
    ("published snapshot", "its number wrong"),
    ("cut-line", "raised"),
    ("registration", "start position raised"),
    ("registration", "field IDs of two columns exchanged"),
    ("change feed", "an error that there is not"),
    ("moment", "a snapshot's number wrong"),
    ("publication", "without deletes"),
}
_BEFORE_A_PUMP = {Observer.READERS, Observer.STATUS, Observer.DOCTOR}
"""What these say does not depend on how fast a pump is."""


@pytest.fixture
def no_logs() -> Iterator[None]:
    """Each pump logs what it finds."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(disabled)


@pytest.mark.further
@pytest.mark.unverified("the mirror is another one, which is damaged")
@pytest.mark.usefixtures("no_logs")
def test_the_table_is_what_is_found() -> None:
    findings = read_document()
    damages = [damage for damage in chosen() if (damage.thing, damage.name) in _SAMPLE]
    assert len(damages) == len(_SAMPLE)
    for result in run_all(damages):
        documented, finding = findings[result.damage.thing, result.damage.name], Finding.of(result)
        assert not result.is_defect, result.row
        assert bool(finding.noticed) == bool(documented.noticed), result.row
        assert finding.is_wrong == documented.is_wrong, result.row
        assert _BEFORE_A_PUMP & {*finding.noticed} == _BEFORE_A_PUMP & {*documented.noticed}, result.row
        assert not finding.noticed or {*finding.noticed} & {*documented.noticed}, result.row
