"""Which bugs of PostgreSQL doctor names for a release."""

from __future__ import annotations

import pytest

from mirror_pump.source.known_bugs import KNOWN_BUGS, bugs_of
from mirror_pump.source.server import NEWEST_MAJOR, OLDEST_MAJOR


@pytest.mark.parametrize(
    ("version", "named"),
    [
        (170004, "while a table is added to a publication"),
        (150012, "while a table is added to a publication"),
        (160001, "send NULL for a column that was added with a constant default"),
        # The fix of the first bug introduced another.
        (170005, "run out of memory in logical decoding"),
        (150013, "run out of memory in logical decoding"),
        (150009, "restart_lsn back"),
        (180000, "invalidate a slot without need"),
        (180003, "wait for ever for a walsender"),
    ],
)
def test_a_release_with_a_bug(version: int, named: str) -> None:
    assert [bug for bug in bugs_of(version) if named in bug.effect]


@pytest.mark.parametrize(
    ("version", "absent"),
    [
        (170005, "while a table is added to a publication"),
        # Before the fix that introduced it.
        (170004, "run out of memory in logical decoding"),
        (170000, "send NULL for a column that was added with a constant default"),
    ],
)
def test_a_release_without_it(version: int, absent: str) -> None:
    assert not [bug for bug in bugs_of(version) if absent in bug.effect]


@pytest.mark.parametrize("version", [150016, 160012, 170010, 180004, 180006, 190000])
def test_releases_without_known_bugs(version: int) -> None:
    assert bugs_of(version) == ()


def test_each_bug_names_its_release_notes() -> None:
    for bug in KNOWN_BUGS:
        for major, minor in bug.fixed.items():
            assert OLDEST_MAJOR <= major <= NEWEST_MAJOR
            assert bug.since.get(major, 0) < minor
            assert bug.release_notes(major) == f"https://www.postgresql.org/docs/release/{major}.{minor}/"
