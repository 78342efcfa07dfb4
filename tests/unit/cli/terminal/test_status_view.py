"""`mirror-pump status` on terminals of several widths: 200 tables, some with the longest possible names."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from mirror_pump.cli.terminal.status_view import render
from mirror_pump.model import Lsn, SnapshotId, TableState
from mirror_pump.ops.status.alerts import alerts_of
from mirror_pump.ops.status.lake_content import LakeContent
from mirror_pump.ops.status.status_report import DeleteMode, LeaderStatus, MirrorStatus, SlotState, TableStatus
from tests.support.monitored import some_of_everything

WIDTHS = (60, 80, 100, 120, 200)
AT = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
CONTENT = LakeContent(1_234_567_890, 1200, 340, 49_999, AT, 123 << 30, 200 << 30, 80 << 30, rows_exact=False)


def table(name: str, state: TableState = TableState.LIVE, error: str | None = None) -> TableStatus:
    live = state is TableState.LIVE
    return TableStatus(
        table=name,
        lake_table=name,
        state=state,
        frontier=None if state is TableState.COPYING else Lsn(0x16_B374_D848),
        lag_bytes=None if state is TableState.COPYING else 15 << 20,
        lag_seconds=200.4 if live else None,
        snapshot_id=SnapshotId(7),
        metadata_location=f"s3://lake/{name}/metadata/1.json",
        equality_deletes_age=9.5,
        content=CONTENT,
        chunks_total=0 if live else 1234,
        chunks_done=0 if live else 321,
        rows_copied=0,
        deletes=DeleteMode("equality", "following", 10, 10),
        error=error,
    )


def mirror(tables: list[TableStatus]) -> MirrorStatus:
    slot = SlotState(
        name="mirror_pump",
        publication="mirror_pump",
        exists=True,
        active=True,
        wal_status="reserved",
        retained_bytes=5 << 20,
        confirmed=Lsn(1),
    )
    leader = LeaderStatus("host-1", 4242, "2026-05-04T08:00:00+00:00", 3, alive=True)
    status = MirrorStatus(
        "shop", "s3://lake/shop", AT, Lsn(2), Lsn(1), AT, 15 << 20, 200.4, slot, leader, None, tuple(tables)
    )
    return replace(status, alerts=alerts_of(status))


def names() -> list[str]:
    """200 names: every tenth has a schema and a table of 63 characters."""
    return [
        f"{'schema_of_the_department_'.ljust(60, 's')}{number:03}.{'events_by_customer_'.ljust(60, 'e')}{number:03}"
        if number % 10 == 0
        else f"public.orders_{number:03}"
        for number in range(200)
    ]


def drawn(status: MirrorStatus, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(render(status))
    return file.getvalue().splitlines()


def rows(lines: list[str]) -> dict[str, str]:
    """The grid's rows by name. Figures are indented after the name, or below one that is too long for its column."""
    start = next(number for number, line in enumerate(lines) if line.startswith("table "))
    name_width = lines[start].index("state")
    found = {}
    above = ""
    for line in lines[start + 1 :]:
        if line.startswith("not enough room for:"):
            break
        if line[name_width:].startswith(("live", "copying", "failed")):
            found[above or line[:name_width].strip()] = line[name_width:]
            above = ""
        else:
            above += line.strip()
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_the_name_state_and_lag_of_every_table_can_be_read(width: int) -> None:
    lines = drawn(mirror([table(name) for name in names()]), width)

    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    shown = rows(lines)
    for name in names():
        assert "live" in shown[name]
        assert "3 min 20 s" in shown[name]


@pytest.mark.parametrize(
    ("width", "shown", "hidden"),
    [
        (60, {"rows"}, {"size", "frontier"}),
        (80, {"rows", "size"}, {"behind", "frontier"}),
        (120, {"rows", "size", "pending deletes", "behind"}, {"index", "frontier"}),
        (200, {"rows", "size", "pending deletes", "behind", "files", "delete files", "index", "frontier"}, set[str]()),
    ],
)  # fmt: skip
def test_internals_go_first_where_there_is_no_room(width: int, shown: set[str], hidden: set[str]) -> None:
    lines = drawn(mirror([table(f"public.orders_{number:03}") for number in range(200)]), width)

    (heading,) = (line for line in lines if line.startswith("table "))
    columns = {column.strip() for column in heading.split("  ") if column.strip()}
    assert shown <= columns
    assert not hidden & columns
    left_out = " ".join(lines).partition("not enough room for:")[2]
    assert all(column in left_out for column in hidden)
    assert bool(left_out) == bool(hidden)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_needs_a_person_comes_first(width: int) -> None:
    tables = [table(name) for name in names()]
    tables[190] = table(names()[190], TableState.FAILED, "column x: NaN is no key")
    tables[150] = table(names()[150], TableState.COPYING)
    lines = drawn(mirror(tables), width)

    text = "".join(lines)
    assert text.index("is no key") < text.index("frontier 0/")
    assert list(rows(lines))[:2] == [names()[190], names()[150]]
    assert "15.0 MiB" in rows(lines)[names()[190]], "its lag in seconds is not known"
    assert "copying 321/1234" in rows(lines)[names()[150]]


def test_a_very_narrow_terminal_gets_two_lines_per_table() -> None:
    long = names()[0]
    lines = drawn(mirror([table(long), table("public.orders_001")]), 36)

    assert max(map(len, lines)) <= 36
    shown = rows(lines)
    assert list(shown) == [long, "public.orders_001"]
    assert all("live" in row and "3 min 20 s" in row for row in shown.values())


def test_one_long_name_does_not_cost_the_others_their_figures() -> None:
    lines = drawn(mirror([table(names()[0]), table("public.orders_001")]), 80)

    assert names()[0] in "".join(lines)
    assert "<= 1,234,567,890" in rows(lines)["public.orders_001"]


def test_pins_of_a_table_without_retention_are_not_shown() -> None:
    """It has neither a cut-line nor partitions that could wait for them."""
    retention = next(each.retention for each in some_of_everything().tables if each.retention is not None)
    pinned = replace(table("public.orders"), retention=replace(retention, has_cutline=False))
    lines = drawn(mirror([pinned]), 200)
    assert not any("pin" in line or "cut-line" in line for line in lines), lines


def test_pins_of_the_lake_alone_are_told_apart() -> None:
    retention = next(each.retention for each in some_of_everything().tables if each.retention is not None)
    leased = replace(table("public.events"), retention=replace(retention, pins=0, lake_pins=351))
    (line,) = (line for line in drawn(mirror([leased]), 500) if line.startswith("public.events: cut-line"))
    assert "351 pins of the lake alone, which nothing waits for" in line
    assert "the oldest" not in line
