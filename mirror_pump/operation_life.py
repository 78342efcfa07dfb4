"""The life of an entry of modak.op_log: the phases of ingests, restores, maintenance and retention.

Each change of a phase is made by one SQL statement, and is in `OPERATION_TRANSITIONS`.
`tests/unit/test_operation_life.py` reads the statements, and keeps both equal. A resync has no entry: its life is that
of its tables (`mirror_pump.table_life`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OperationPhase(StrEnum):
    """modak.op_log.phase."""

    WRITING = "writing"
    """An ingest writes files that nothing refers to. If its process is gone, the table's next ingest removes them."""
    UNDONE = "undone"
    """The files of an ingest that did not land are removed."""
    RESTORING = "restoring"
    """Rows of the table are brought back into the heap. Any later process goes on with it."""
    RESTORED = "restored"
    """One file of the lake is copied into the heap, together with this entry."""
    RUNNING = "running"
    """A maintainer does it, and refreshes the entry."""
    REWRITING = "rewriting"
    """As RUNNING, and data files are rewritten: the pump writes no position deletes meanwhile."""
    DONE = "done"
    FAILED = "failed"
    """It ended with an error, which is in the details."""
    ABANDONED = "abandoned"
    """Its maintainer died."""


@dataclass(frozen=True)
class OperationTransition:
    """An allowed change."""

    formers: tuple[OperationPhase | None, ...]
    """The phases that it may come from. None: there is no entry."""
    statement: str
    """The SQL that makes the change: a function of schema modak, or a query as file.name."""
    phases: tuple[OperationPhase | None, ...]
    """What it leads to; several if the caller chooses. None: the entry is removed."""
    why: str
    """Who makes the change, and when."""


_WRITING, _UNDONE, _RESTORING, _RESTORED, _RUNNING, _REWRITING, _DONE, _FAILED, _ABANDONED = OperationPhase
_T = OperationTransition
OPERATION_TRANSITIONS = (
    _T((None,), "ingest.begin", (_WRITING,), "an ingest, before its first file"),
    _T((_WRITING,), "ingest.done", (_DONE,), "the transaction that makes an ingest's rows visible"),
    _T((_WRITING,), "ingest.undone", (_UNDONE,), "an ingest that failed, or the next one of the table"),
    _T((None,), "restore.begin", (_RESTORING,), "a restore, together with its pin"),
    _T((None,), "restore.copied", (_RESTORED,), "a task of a restore, together with the rows that it copied"),
    _T((_RESTORING, _RESTORED), "restore.forget", (None,), "a restore that ended, was given up, or has lost its pin"),
    _T((None,), "maintenance.begin", (_RUNNING, _REWRITING), "a maintainer, at the begin of a pass or an operation"),
    _T((_RUNNING, _REWRITING), "maintenance.finish", (_DONE, _FAILED), "the same maintainer, at the end"),
    _T((_RUNNING, _REWRITING), "maintenance.abandon", (_ABANDONED,), "the next maintainer that has the table's lock"),
    _T((_DONE, _FAILED, _ABANDONED), "maintenance.prune", (None,), "the same, after 30 days"),
    _T((None,), "retention.journal", (_DONE, _FAILED), "retention, after a step of a partition"),
    _T((None,), "retention.sweep_pins", (_DONE,), "retention, after it removed expired pins"),
    _T((None,), "publish.journal_expiry", (_DONE,), "the publish that moves the retention line"),
    _T((None,), "fold.journal", (_DONE,), "the publish that folds corrections"),
    _T((None,), "fold.journal_purge", (_DONE,), "a fold, after it removed expired corrections"),
    _T((None,), "modak.finish_load", (_DONE,), "the transaction of a labelled load"),
)
"""Every allowed change, each once."""
