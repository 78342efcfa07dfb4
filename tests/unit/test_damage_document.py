"""docs/damage.md says of each kind of damage who notices it."""

from __future__ import annotations

from proofs.damage.document import read_document
from proofs.damage.report import chosen


def test_the_table_has_each_kind() -> None:
    kinds = {(damage.thing, damage.name): damage for damage in chosen()}
    findings = read_document()
    assert findings.keys() == kinds.keys()
    for name, finding in findings.items():
        assert bool(finding.noticed) is not bool(finding.reason), name
        assert finding.reason in ("", kinds[name].reason), name
        assert not finding.is_wrong or finding.noticed or kinds[name].unknowable, name
