"""docs/damage.md says of kinds of damage who notices them, or why no program does."""

from __future__ import annotations

from proofs.damage.document import read_document
from proofs.damage.report import chosen


def test_the_table_has_kinds_that_there_are() -> None:
    kinds = {(damage.thing, damage.name): damage for damage in chosen()}
    findings = read_document()
    assert findings.keys() <= kinds.keys()
    assert len(findings) > 180
    for name, finding in findings.items():
        assert bool(finding.noticed) is not bool(finding.reason), name
        assert finding.reason in ("", kinds[name].reason), name
        assert not finding.is_wrong or finding.noticed or kinds[name].unknowable, name
