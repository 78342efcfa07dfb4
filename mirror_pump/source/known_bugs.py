"""Bugs of released PostgreSQL versions that concern a logical replication slot, each with the release that fixed it.

The source of each entry is the release notes of the fixing release, which `KnownBug.release_notes` names. The list is
not complete: read were the parts on logical decoding and slots in the notes of 15.6, 15.15 and 15.16, of 16.11, of 17.2
and 17.5 to 17.11, and of 18.1, 18.2, 18.4 and 18.6. Those of November 2026 are missing. Bugs of subscribers,
of standbys and of options that the mirror does not use are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KnownBug:
    """A bug of the minor releases from `since` up to the one before `fixed`."""

    effect: str
    """What may happen. It completes "PostgreSQL 17.4 ..."."""
    fixed: Mapping[int, int]
    """By major version, the first minor release without the bug."""
    loses_changes: bool = False
    """Whether changes may be missing in the stream, or be wrong, without any error."""
    since: Mapping[int, int] = field(default_factory=dict)
    """By major version, the first minor release with the bug; 0 for those that are not named."""

    def affects(self, major: int, minor: int) -> bool:
        """Whether that release has the bug."""
        return self.since.get(major, 0) <= minor < self.fixed.get(major, 0)

    def release_notes(self, major: int) -> str:
        """The address of the notes of the release that fixed the bug in this major version."""
        return f"https://www.postgresql.org/docs/release/{major}.{self.fixed[major]}/"


_MAY_2025 = {15: 13, 16: 9, 17: 5}
_AUGUST_2025 = {15: 14, 16: 10, 17: 6}
_NOVEMBER_2025 = {15: 15, 16: 11, 17: 7, 18: 1}
_FEBRUARY_2026 = {15: 16, 16: 12, 17: 8, 18: 2}

KNOWN_BUGS = (
    # "Avoid data loss when DDL operations that don't take a strong lock affect tables that are being logically
    # replicated".
    KnownBug(
        "can lose changes of transactions that run while a table is added to a publication",
        _MAY_2025,
        loses_changes=True,
    ),
    # "Ensure that column default values are correctly transmitted by the pgoutput logical replication plugin".
    KnownBug(
        "can send NULL for a column that was added with a constant default, in rows from before",
        {15: 6, 16: 2},
        loses_changes=True,
    ),
    # "Prevent examining system catalogs with the wrong snapshot during logical decoding".
    KnownBug(
        "can decode rows by outdated table definitions if decoding begins in the middle of a transaction with DDL",
        {15: 6, 16: 2},
        loses_changes=True,
    ),
    # "Avoid re-distributing cache invalidation messages from other transactions during logical replication": a bug of
    # the fix for the first entry.
    KnownBug(
        "can run out of memory in logical decoding, on every attempt, if DDL runs during long transactions",
        _AUGUST_2025,
        since=_MAY_2025,
    ),
    # "Avoid infinite wait in logical decoding when reading a partially-written WAL record".
    KnownBug(
        "can wait for ever in logical decoding after a crash of the server, until something writes WAL", _AUGUST_2025
    ),
    # "Avoid premature removal of old WAL during checkpoints".
    KnownBug(
        "can remove WAL that a slot needs if the server crashes right after a checkpoint: the slot is lost then",
        _AUGUST_2025,
    ),
    # "Fix use-after-free during logical replication of INSERT ... ON CONFLICT".
    KnownBug("can crash the walsender when it decodes INSERT ... ON CONFLICT", {16: 10, 17: 6}),
    # "Fix cases where a logical replication slot's restart_lsn could go backwards".
    KnownBug(
        "can move a slot's restart_lsn back to WAL that has been removed: the stream cannot start again then",
        {15: 10, 16: 6, 17: 2},
    ),
    # "Remove the unfinished slot state file after failing to write a replication slot's state to disk".
    KnownBug(
        "can no longer save a slot once its disk was full, until a file state.tmp is removed from pg_replslot",
        _NOVEMBER_2025,
    ),
    # "Avoid unnecessary invalidation of logical replication slots".
    KnownBug("can invalidate a slot without need", {16: 11, 17: 7, 18: 1}),
    # "Avoid failures in logical replication due to chance collisions of file numbers between regular and temporary
    # tables".
    KnownBug(
        "can fail for a while in logical decoding, with `unexpected duplicate for tablespace`, if there are temporary"
        " tables",
        {15: 15, 16: 11, 17: 7},
    ),
    # "Prevent invalidation of newly created or newly synced replication slots".
    KnownBug("can invalidate a slot that is made during a checkpoint", _FEBRUARY_2026),
    # "Fix race condition in computing a replication slot's required xmin".
    KnownBug("can fail to make a slot, with `cannot build an initial slot snapshot`: try again", _FEBRUARY_2026),
    # "Prevent indefinite wait in shutdown of a walsender process".
    KnownBug("can wait for ever for a walsender when it is shut down", {17: 10, 18: 4}),
)


def bugs_of(server_version: int) -> tuple[KnownBug, ...]:
    """The bugs of a server, by its server_version_num, such as 170004."""
    major, minor = divmod(server_version, 10000)
    return tuple(bug for bug in KNOWN_BUGS if bug.affects(major, minor))
