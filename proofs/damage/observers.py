"""Who notices a damage: readers, `status`, `doctor`, the pump, `verify`, the look at all files; what is wrong then."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, LiteralString

from pyiceberg.table import StaticTable

from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.commit.presence import wrong_files
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.doctor.check import Outcome
from mirror_pump.ops.doctor.examination import CHECKS, examine
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.verify.verification import VerifyReport, verify
from mirror_pump.pipeline.missing_files.damaged_files import needed_files
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import RunningPump, normalised
from proofs.damage.small_mirror import EVENTS, LEDGER, PLAIN, SmallMirror

_STORAGE = StorageOptions(fsync=False)
_DOCTOR = frozenset(
    ("database", "rights", "replication", "event triggers", "catalog", "publication", "tables", "storage")
)
_PATIENCE = 15.0
_COPYING = "SELECT count(*) FROM modak.mirror_tables WHERE state IN ('copying', 'filling', 'waiting')"
_FAILING = "SELECT count(*) FROM modak.mirror_slots WHERE last_error IS NOT NULL"


class Observer(StrEnum):
    """Who may notice."""

    READERS = "readers"
    STATUS = "status"
    DOCTOR = "doctor"
    START = "pump"
    """A pump when it starts, and within seconds."""
    VERIFY = "verify"
    LOOK = "look"
    """The running pump's look at all files, every ten minutes."""
    CHANGE = "change"
    """The pump, with the next change of the table."""


@dataclass
class Observation:
    """What was noticed of a damage."""

    texts: dict[Observer, str] = field(default_factory=dict)
    """By observer what it said."""
    wrong: str = ""
    """What DuckDB or pyiceberg read otherwise, without an error, before a pump ran; empty for nothing."""
    wrong_later: str = ""
    """The same after changes by a pump, which ended without an error."""


Alerts = frozenset[str]


class Observers:
    """Those of one mirror. What they say of the mirror without damage does not count."""

    def __init__(self, mirror: SmallMirror) -> None:
        self._mirror = mirror
        self._rows = self._expected()
        self._alerts = self._status()
        self._findings = self._doctor()
        clean = Observation()
        assert not self._read(clean), "rows differ without damage"
        assert not clean.texts, clean
        with self._pumping():
            assert not self._verify(), self._verify()

    def observe(self) -> Observation:
        """All observers, one after the other. The mirror moves on meanwhile."""
        observation = Observation()
        observation.wrong = self._read(observation)
        self._note(observation, Observer.STATUS, self._status() - self._alerts)
        self._note(observation, Observer.DOCTOR, self._doctor() - self._findings)
        with self._pumping() as running:
            if not self._catch_up(running):
                self._note(observation, Observer.START, self._pump_errors(running))
                return observation
            self._note(observation, Observer.START, self._pump_errors(running))
            self._note(observation, Observer.VERIFY, self._verify())
            self._note(observation, Observer.LOOK, self._look())
            noticed = self._pump_errors(running)
            try:
                self._mirror.change(2)
            except Exception as error:  # noqa: BLE001
                self._note(observation, Observer.CHANGE, frozenset([str(error)]))
                return observation
            self._catch_up(running)
            self._note(observation, Observer.CHANGE, self._pump_errors(running) - noticed)
            if not observation.texts:
                # What is wrong from now on.
                self._note(observation, Observer.VERIFY, self._verify())
        later = Observation()
        wrong = self._read(later, self._expected())
        observation.wrong_later = "; ".join(filter(None, (wrong, later.texts.get(Observer.READERS))))
        return observation

    def _note(self, observation: Observation, observer: Observer, texts: frozenset[str]) -> None:
        if texts:
            observation.texts[observer] = " / ".join(sorted(texts))

    # Readers

    def _expected(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: self._rows_of(f"model_{name}") for name in (*PLAIN, EVENTS)}

    def _read(self, observation: Observation, expected: dict[str, list[tuple[Any, ...]]] | None = None) -> str:
        """What is read otherwise. Errors are noted."""
        wrong, errors = [], set()
        for name, rows in (expected or self._rows).items():
            for reader in (self._duckdb, self._filtered, self._pyiceberg):
                try:
                    if reader(name, rows) != rows:
                        wrong.append(f"{name} by {reader.__name__}")
                except Exception as error:  # noqa: BLE001 - whatever an engine says
                    if "equality deletes" not in str(error):
                        errors.add(str(error)[:200])
        for name in (*PLAIN, EVENTS, LEDGER):
            try:
                if self._across(name) != self._rows_of(f"model_{name}"):
                    wrong.append(f"{name} as published")
            except Exception as error:  # noqa: BLE001 - whatever an engine says
                if "equality deletes" not in str(error):
                    errors.add(str(error)[:200])
        self._note(observation, Observer.READERS, frozenset(errors))
        return ", ".join(wrong)

    def _rows_of(self, table: str, where: str = "true") -> list[tuple[Any, ...]]:
        with self._mirror.database.session() as connection:
            return normalised(connection.execute(f"SELECT * FROM {table} WHERE {where}".encode()).fetchall())

    def _across(self, name: str) -> list[tuple[Any, ...]]:
        """As a reader of what is published finds it by the rows of the catalog alone, with corrections and heap."""
        with self._mirror.database.session() as connection:
            row = connection.execute(
                "SELECT tier_key_hi, lake_snapshot_id, lake_props ->> 'metadata_location' FROM modak.cutline"
                " WHERE table_id = to_regclass(%s)::oid::bigint",
                (name,),
            ).fetchone()
            assert row is not None, "it has no cut-line"
            cut, snapshot_id, location = row
        with duckdb_connection() as duckdb:
            scan = f"SELECT * FROM iceberg_scan('{location}', snapshot_from_id => {snapshot_id}::ubigint)"
            published = duckdb.execute(scan).fetchall()
        if name in PLAIN:
            return normalised(published)
        cold = [row for row in published if row[0] < cut]
        corrected = self._corrected(name, cold)
        return normalised([*corrected, *self._rows_of(name, f"at >= {cut}")])

    def _seam(self, name: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """What is read of the lake, with what a reader across the cut-line adds."""
        return rows if name != EVENTS else self._corrected(name, rows)

    def _corrected(self, name: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        by_key = {row[:2]: row for row in rows}
        query: LiteralString = (
            "SELECT op, payload FROM modak.delta d LEFT JOIN modak.cutline c USING (table_id)"
            " WHERE table_id = %s::regclass::oid::bigint AND (d.tier_key < c.tier_key_hi) IS NOT FALSE ORDER BY version"
        )
        for operation, payload in self._mirror.database.rows(query, (name,)):
            by_key.pop((payload["at"], payload["id"]), None)
            if operation == 0:
                by_key[payload["at"], payload["id"]] = (payload["at"], payload["id"], payload["v"])
        return normalised(list(by_key.values()))

    def _duckdb(self, name: str, _: object) -> list[tuple[Any, ...]]:
        with duckdb_connection() as duckdb:
            location = self._mirror.mirror.location(f"public.{name}")
            rows = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").fetchall()
        return self._seam(name, normalised(rows))

    def _filtered(self, name: str, expected: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """By keys, and by values: files whose bounds do not match are passed over."""
        location = self._mirror.mirror.location(f"public.{name}")
        key = '"at"' if name == EVENTS else "id"
        with duckdb_connection() as duckdb:
            scan = f"SELECT * FROM iceberg_scan('{location}') WHERE"
            halves = [f"{key} < 20", f"{key} >= 20 AND {key} < 1000", f"{key} >= 1000"]
            rows = [row for half in halves for row in duckdb.execute(f"{scan} {half}").fetchall()]
            empty = duckdb.execute(f"{scan} v IS NULL").fetchall()
        assert not empty, "rows with NULL"
        return self._seam(name, normalised(rows))

    def _pyiceberg(self, name: str, _: object) -> list[tuple[Any, ...]]:
        table = StaticTable.from_metadata(self._mirror.mirror.location(f"public.{name}"))
        read = table.scan().to_arrow()
        rows = list(zip(*(column.to_pylist() for column in read.columns), strict=True))
        return self._seam(name, normalised(rows))

    # The program

    def _status(self) -> Alerts:
        try:
            with StatusReader(complete(self._mirror.settings)) as reader:
                return frozenset(_general(f"{alert.table}: {alert.message}") for alert in reader.read().alerts)
        except MirrorPumpError as error:
            return frozenset([_general(str(error))])

    def _doctor(self) -> Alerts:
        checks = [check for check in CHECKS if check.name in _DOCTOR]
        findings = [finding for check in examine(self._mirror.settings, checks).checks for finding in check.findings]
        bad = (Outcome.FAILED, Outcome.WARNING)
        return frozenset(_general(f"{found.table}: {found.message}") for found in findings if found.outcome in bad)

    def _verify(self) -> Alerts:
        try:
            return _problems(verify(self._mirror.settings, replay_feeds=True))
        except MirrorPumpError as error:
            return frozenset([str(error)])

    def _look(self) -> Alerts:
        with self._mirror.database.connect() as connection:
            locations = [needed.metadata_location for needed in needed_files(connection, self._mirror.settings.slot)]
        texts = set()
        for location in locations:
            try:
                texts |= {str(error) for error in wrong_files(location, _STORAGE)}
            except MirrorPumpError as error:
                texts.add(str(error))
        return frozenset(texts)

    @contextmanager
    def _pumping(self) -> Iterator[RunningPump]:
        running = self._mirror.mirror.start()
        try:
            yield running
        finally:
            running.pump.request_stop()
            running.thread.join(_PATIENCE)
            assert not running.thread.is_alive(), "the pump did not end"

    def _catch_up(self, running: RunningPump) -> bool:
        """Whether the frontier comes to the present end of WAL, and no table is copied, before the pump fails."""
        deadline = time.monotonic() + _PATIENCE
        target = self._mirror.database.lsn()
        while running.thread.is_alive() and time.monotonic() < deadline:
            with suppress(AssertionError, MirrorPumpError):
                self._mirror.mirror.await_frontier(target, seconds=0.5)
                if not self._mirror.value(_COPYING):
                    return True
            if self._mirror.value(_FAILING):
                return False
            time.sleep(0.02)
        return False

    def _pump_errors(self, running: RunningPump) -> Alerts:
        rows = self._mirror.database.rows(
            "SELECT t.table_name || ' is ' || m.state || ': ' || coalesce(m.error, '') FROM modak.mirror_tables m"
            " JOIN modak.tables t USING (table_id) WHERE m.state <> 'live'"
            " UNION SELECT 'the pump: ' || (last_error ->> 'error') FROM modak.mirror_slots"
            " WHERE last_error IS NOT NULL"
        )
        texts = {text for (text,) in rows}
        if running.error is not None:
            texts.add(f"the pump ends: {running.error}")
        return frozenset(texts) | (self._status() - self._alerts)


def _problems(report: VerifyReport) -> Alerts:
    problems = {f"{table.table}: {table.problem}" for table in report.tables if table.problem is not None}
    problems |= {
        f"{table.table}: {table.comparison.different_rows} rows differ"
        for table in report.tables
        if table.comparison is not None and not table.equal
    }
    problems |= {f"feed of {feed.table}: {feed.problem or 'differs'}" for feed in report.feeds if not feed.is_whole}
    problems |= {f"moment {moment.name}: {moment.problem}" for moment in report.moments if moment.problem is not None}
    return frozenset(problems)


def _general(text: str) -> str:
    """Without the numbers, which differ between two looks."""
    return re.sub(r"[0-9A-F]+/[0-9A-F]+|\d[\d:.\-]*", "N", text)
