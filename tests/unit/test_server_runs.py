"""What docs/servers.md says was run is what `make servers` writes, and each server that is supported can be named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.source.server import NEWEST_MAJOR, OLDEST_MAJOR
from mirror_pump.testing.installation import BUNDLED_MAJOR
from tests.support.server_package import PACKAGES, NoServer, installation
from tests.support.server_runs import PAGE, PARTS, counted, written

_REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.integration.types.test_types" name="a"/>
<testcase classname="tests.integration.types.test_types" name="b"><skipped message="since 18"/></testcase>
<testcase classname="tests.integration.failover.test_failover" name="c"/>
<testcase classname="tests.integration.stream.test_slot_checks" name="d"/>
</testsuite></testsuites>"""


def test_parts_name_modules_that_exist() -> None:
    root = Path(__file__).parents[1] / "integration"
    names = [name for modules in PARTS.values() for name in modules]
    assert len(set(names)) == len(names)
    assert [name for name in names if not (root / name).is_dir() and not (root / f"{name}.py").exists()] == []


def test_a_line_of_the_table() -> None:
    run = counted("16.14", _REPORT)
    assert (run.version, dict(run.passed), run.skipped) == ("16.14", {"types": 1, "failover": 2}, 1)
    page = PAGE.read_text(encoding="utf-8")
    changed = written(page, [run])
    assert run.line in changed
    assert written(changed, [run]) == changed
    assert written(page, []) == page, "edit the table by `make servers`"


def test_a_server_that_cannot_be_had_is_named() -> None:
    supported = set(range(OLDEST_MAJOR, NEWEST_MAJOR + 1))
    assert {*PACKAGES, BUNDLED_MAJOR} == supported - {19}
    with pytest.raises(
        NoServer, match=r"no registry is known to have a server of PostgreSQL 19, only of 15, 16, 17, 18"
    ):
        installation(19)
