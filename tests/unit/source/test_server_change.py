"""What a server is to the mirror: each outcome of docs/design/upgrade.md, from its facts."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mirror_pump.model import Lsn
from mirror_pump.source.catalog.server_change import (
    ForeignServer,
    MovedTable,
    OutdatedSequence,
    SameServer,
    ServerComparison,
    SuccessorServer,
    UnguardedPartition,
    UpgradedServer,
    recognise,
)
from mirror_pump.source.stream.slot import SlotStatus, SystemIdentity

_SEGMENT = 16 * 1024 * 1024
_SLOT = SlotStatus(
    name="mirror_pump",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    two_phase=False,
    active_pid=None,
    restart_lsn=Lsn(8 * _SEGMENT + 216),
    confirmed_flush_lsn=Lsn(8 * _SEGMENT + 272),
    wal_status="reserved",
    safe_wal_bytes=None,
    retained_bytes=0,
    invalidation_reason=None,
    failover=True,
    inactive_since=datetime(2026, 11, 26, tzinfo=UTC),
)
_OLD = SystemIdentity("7000", 3, "shop")
_NEW = SystemIdentity("7001", 1, "shop")
_UPGRADED = ServerComparison(
    slot_name="mirror_pump",
    recorded=_OLD,
    identity=_NEW,
    streams=True,
    applied=Lsn(1000),
    drained=Lsn(2000),
    wal_end=Lsn(8 * _SEGMENT + 700),
    segment_bytes=_SEGMENT,
    logical_slots=1,
    version=180000,
    slot=_SLOT,
)
"""After pg_upgrade of a drained mirror."""


@pytest.mark.parametrize("timeline", [1, 3, 4])
def test_the_same_cluster_is_the_same_server_on_any_timeline(timeline: int) -> None:
    server = replace(_UPGRADED, identity=replace(_OLD, timeline=timeline), slot=None, drained=None)
    assert recognise(server) == SameServer()


def test_a_drained_mirror_goes_on_from_the_slot_of_pg_upgrade() -> None:
    assert recognise(_UPGRADED) == UpgradedServer(_NEW, Lsn(8 * _SEGMENT + 272))
    # Beside other slots, which it makes first.
    later = replace(
        _SLOT,
        restart_lsn=Lsn(8 * _SEGMENT + 216 + 2 * 56),
        confirmed_flush_lsn=Lsn(8 * _SEGMENT + 216 + 3 * 56),
    )
    assert isinstance(recognise(replace(_UPGRADED, slot=later, logical_slots=3)), UpgradedServer)
    # The frontier may have reached the drained position, not passed it.
    assert isinstance(recognise(replace(_UPGRADED, applied=Lsn(2000))), UpgradedServer)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (replace(_UPGRADED, slot=None), "without slot mirror_pump"),
        (replace(_UPGRADED, slot=replace(_SLOT, failover=False)), "failover property"),
        (replace(_UPGRADED, slot=replace(_SLOT, failover=None), version=160000), "failover property"),
        (replace(_UPGRADED, slot=replace(_SLOT, restart_lsn=Lsn(8 * _SEGMENT + 392))), "in no stream"),
        (replace(_UPGRADED, slot=replace(_SLOT, restart_lsn=Lsn(9 * _SEGMENT - 8))), "in no stream"),
        (replace(_UPGRADED, slot=replace(_SLOT, restart_lsn=None)), "invalidated"),
        (replace(_UPGRADED, slot=replace(_SLOT, wal_status="lost")), "invalidated"),
        (replace(_UPGRADED, slot=replace(_SLOT, database="other")), "another kind"),
        (replace(_UPGRADED, slot=replace(_SLOT, plugin=None)), "another kind"),
        (replace(_UPGRADED, slot=replace(_SLOT, plugin="wal2json")), "another kind"),
        (replace(_UPGRADED, slot=replace(_SLOT, confirmed_flush_lsn=None)), "in no stream"),
        (replace(_UPGRADED, drained=None), "not drained"),
        (replace(_UPGRADED, applied=Lsn(2001)), "not drained"),
        (replace(_UPGRADED, drained=Lsn(9 * _SEGMENT)), "not drained"),
        # Moved since by another session: its restart_lsn stays.
        (replace(_UPGRADED, slot=replace(_SLOT, confirmed_flush_lsn=Lsn(8 * _SEGMENT + 33_864))), "was moved since"),
        (replace(_UPGRADED, slot=replace(_SLOT, confirmed_flush_lsn=Lsn(2000))), "was moved since"),
        (replace(_UPGRADED, streams=False, slot=None, drained=None), "published on 7000"),
    ],
)
def test_any_other_slot_counts_as_none(server: ServerComparison, reason: str) -> None:
    outcome = recognise(server)
    assert isinstance(outcome, SuccessorServer)
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("server", "reason", "remedy"),
    [
        (
            replace(_UPGRADED, identity=replace(_NEW, database="copy")),
            "this is database copy",
            "connect to the original",
        ),
        (
            replace(_UPGRADED, identity=replace(_OLD, database="copy")),
            "this is database copy",
            "connect to the original",
        ),
        (replace(_UPGRADED, subscriptions=('"Blue"',)), "not complete", 'ALTER SUBSCRIPTION "Blue" DISABLE'),
        (
            replace(_UPGRADED, moved=(MovedTable("public", "t", 16400, 16500),)),
            "public.t has OID 16500 in it, not 16400 (1 tables in all)",
            "unregister",
        ),
        (
            replace(_UPGRADED, unguarded=(UnguardedPartition(16400, 16410, "public.p'1", is_shared=True),)),
            "partition public.p'1 lacks the triggers",
            "SELECT modak.retain_triggers(16400, 16410, 'public.p''1', 'cold')",
        ),
        (
            replace(_UPGRADED, sequences=(OutdatedSequence("modak.delta_version", 5, 7),)),
            "modak.delta_version stands at 5",
            "SELECT setval('modak.delta_version', 7)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(server: ServerComparison, reason: str, remedy: str) -> None:
    """Whether the slot looks right or not."""
    for slot in (_SLOT, None):
        outcome = recognise(replace(server, slot=slot))
        assert isinstance(outcome, ForeignServer)
        assert reason in outcome.reason
        assert remedy in outcome.remedy


@pytest.mark.parametrize(
    ("applied", "segment_bytes", "name"),
    [
        # 5/7B000010 is in segment 5*256 + 0x7B of 16 MB, and the one behind the next is beyond it for certain.
        (0x5_7B000010, _SEGMENT, "00000001000000050000007D"),
        (0x5_FF000010, _SEGMENT, "000000010000000600000001"),
        (0x5_FC000010, 4 * _SEGMENT, "000000010000000600000001"),
    ],
)
def test_a_server_behind_the_frontier_has_to_move_on(applied: int, segment_bytes: int, name: str) -> None:
    """By a WAL file's name as pg_resetwal takes it: timeline, and the segment's number in two parts."""
    server = replace(_UPGRADED, applied=Lsn(applied), wal_end=Lsn(applied - 1), segment_bytes=segment_bytes, slot=None)
    outcome = recognise(server)
    assert isinstance(outcome, ForeignServer)
    assert "before the frontier" in outcome.reason
    assert f"`pg_resetwal -l {name} -D" in outcome.remedy
    assert isinstance(recognise(replace(server, wal_end=Lsn(applied))), SuccessorServer)


def test_the_page_names_what_is_refused() -> None:
    """The first column of its last table, in words of the errors."""
    page = (Path(__file__).parents[3] / "docs/upgrade.md").read_text()
    rows = [line for line in page.partition("## When it is refused")[2].splitlines() if line.startswith("| `")]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    sources = ("source/catalog/server_change.py", "pipeline/session/lost_publishes.py")
    code = "".join((Path(__file__).parents[3] / "mirror_pump" / name).read_text() for name in sources)
    # As Python joins adjacent literals.
    code = re.sub(r'"\s+f?"', "", code)
    assert len(quoted) >= 8
    for text in quoted:
        for part in text.split("..."):
            assert part.strip() in code, text


def test_a_partition_that_the_catalog_does_not_call_shared() -> None:
    """The other server's pump has dropped it there, or its owner attached it here."""
    server = replace(_UPGRADED, unguarded=(UnguardedPartition(16400, 16410, "public.p1", is_shared=False),))
    outcome = recognise(replace(server, slot=None))
    assert isinstance(outcome, ForeignServer)
    assert "partition public.p1 lacks the triggers" in outcome.reason
    assert "retain_triggers" not in outcome.remedy
    assert "make the copy anew" in outcome.remedy
    # After pg_upgrade with the slot nothing ran elsewhere.
    assert recognise(server) == recognise(_UPGRADED)
