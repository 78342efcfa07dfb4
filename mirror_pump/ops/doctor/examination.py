"""Runs all checks, one after the other, and collects what they found. No check ends the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mirror_pump.errors import MirrorPumpError, one_line_of
from mirror_pump.json_documents import JsonDocument
from mirror_pump.ops.doctor.catalog import CATALOG, PUBLICATION, TABLES
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, failed, failure, skipped
from mirror_pump.ops.doctor.engines import ENGINES
from mirror_pump.ops.doctor.failover import FAILOVER
from mirror_pump.ops.doctor.followers import FOLLOWERS
from mirror_pump.ops.doctor.machine import DISK, JARS, JAVA
from mirror_pump.ops.doctor.replication import REPLICATION
from mirror_pump.ops.doctor.rights import EVENT_TRIGGERS, RIGHTS
from mirror_pump.ops.doctor.server import CLOCK, DATABASE, POOLER, SERVER
from mirror_pump.ops.doctor.storage import STORAGE
from mirror_pump.runtime.telemetry import get_logger, redact
from mirror_pump.settings.config import Settings

CHECKS = (
    DATABASE,
    POOLER,
    SERVER,
    RIGHTS,
    REPLICATION,
    EVENT_TRIGGERS,
    CLOCK,
    CATALOG,
    FAILOVER,
    PUBLICATION,
    TABLES,
    STORAGE,
    FOLLOWERS,
    DISK,
    JAVA,
    JARS,
    ENGINES,
)
"""In the order of the report. A check comes after those that it needs."""

_WITHOUT = frozenset({Outcome.FAILED, Outcome.SKIPPED})
"""Outcomes of a check after which those that need it are skipped."""


@dataclass(frozen=True)
class Examined(JsonDocument, also=("outcome",)):
    """A check that was made, or skipped."""

    check: str
    """What was looked at (docs/operations.md#mirror-pump-doctor)."""
    seconds: float
    """How long it took."""
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of its findings."""
        return worst(finding.outcome for finding in self.findings)


@dataclass(frozen=True)
class Examination(JsonDocument, also=("outcome",)):
    """The results of all checks, in their order."""

    checks: tuple[Examined, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of all checks; `ok` if the rest was skipped."""
        worst_outcome = worst(check.outcome for check in self.checks)
        return Outcome.OK if worst_outcome is Outcome.SKIPPED else worst_outcome

    def count(self, outcome: Outcome) -> int:
        """How many checks had this outcome."""
        return sum(check.outcome is outcome for check in self.checks)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of these outcomes; `ok` if there are none."""
    order = list(Outcome)
    return min(outcomes, key=order.index, default=Outcome.OK)


def examine(
    settings: Settings, checks: Sequence[DoctorCheck] = CHECKS, report: Callable[[Examined], None] = lambda _: None
) -> Examination:
    """Make all checks. Calls `report` after each. Raises nothing but KeyboardInterrupt."""
    site = Site(settings)
    done: dict[str, Examined] = {}
    for check in checks:
        missing = [name for name in check.needs if name in done and done[name].outcome in _WITHOUT]
        examined = (
            Examined(check.name, 0.0, (skipped(f"not looked at, because of what is said about: {missing[0]}"),))
            if missing
            else _make_check(check, site)
        )
        done[check.name] = examined
        report(examined)
    return Examination(tuple(done.values()))


def _make_check(check: DoctorCheck, site: Site) -> Examined:
    """Make one check in a thread of its own, and wait for it until its deadline."""
    began = time.monotonic()
    findings: list[Finding] = []
    ended = threading.Event()

    def run() -> None:
        # Findings from before an error count.
        try:
            for finding in check.run(site):
                findings.append(finding)  # noqa: PERF402 - those before an error have to be there
        except MirrorPumpError as error:
            findings.append(failure(error))
        except Exception as error:  # noqa: BLE001 - whatever a check meets is a finding, and the others go on
            get_logger("doctor").debug("traceback", check=check.name, exc_info=True)
            detail = one_line_of(error)
            findings.append(failed(f"{type(error).__name__}: {detail}", "mirror-pump doctor --debug shows more"))
        finally:
            ended.set()

    # A daemon: a check that hangs must not keep the program from ending.
    threading.Thread(target=run, name=f"check-{check.name}", daemon=True).start()
    in_time = ended.wait(check.deadline)
    redacted = [
        replace(finding, message=redact(finding.message), remedy=redact(finding.remedy)) for finding in findings
    ]
    if not in_time:
        redacted.append(failed(f"no answer within {check.deadline:g} s", "see that nothing blocks the way there"))
    return Examined(check.name, round(time.monotonic() - began, 3), tuple(redacted))
