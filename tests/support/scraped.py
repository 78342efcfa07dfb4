"""The gauges of a real mirror as Prometheus scrapes them, and promtool, which tells what alerts follow from samples."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mirror_pump.errors import MirrorPumpError
from mirror_pump.monitoring.gauges import observe
from mirror_pump.monitoring.history import StatusHistory, StatusSample
from mirror_pump.monitoring.otel_setup import meter_provider, shut_down
from mirror_pump.monitoring.pump_state import PumpState
from mirror_pump.monitoring.sampler import StatusReading, StatusSource
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.settings.config import Settings
from tests.support.deploy_files import ALERTS, alert_rules

Samples = Mapping[str, float]
"""Values by series, such as `up{job="mirror-pump"}`."""

_TARGET = {"job": "mirror-pump", "instance": "pump-1:9187"}
"""Labels that Prometheus adds to a sample."""


class ReadAtOnce(StatusSource):
    """A source that reads the status when the test asks for it, instead of every few seconds."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._history = StatusHistory()
        self._reading = StatusReading()

    @property
    def reading(self) -> StatusReading:
        return self._reading

    def read(self, seconds_ago: float) -> None:
        """Reads the status as if that many seconds ago. After a failure, the last reading stays, as with the
        sampler."""
        at = time.monotonic() - seconds_ago
        try:
            with StatusReader(self._settings) as reader:
                status = reader.read()
        except MirrorPumpError as error:
            last = self._reading
            self._reading = StatusReading(last.at, last.status, last.full, last.history, problem=str(error))
            return
        if status.slot.wal is not None:
            wal = replace(status.slot.wal, at=status.slot.wal.at - timedelta(seconds=seconds_ago))
            status = replace(status, slot=replace(status.slot, wal=wal))
        self._history.add(StatusSample.of(status, time.time() - seconds_ago, 0), status)
        self._reading = StatusReading(at, status, status, self._history.to_json(status))


class ScrapedPump:
    """A pump's gauges. Enter it, and leave it at the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._registry = CollectorRegistry()
        self._source = ReadAtOnce(settings)
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
        self._meters = meter_provider(None, [reader])
        self._state = PumpState()

    def __enter__(self) -> Self:
        observe(self._meters.get_meter("mirror_pump"), self._state, self._source)
        return self

    def __exit__(self, *_: object) -> None:
        shut_down([self._meters.shutdown])

    def read(self, seconds_ago: float = 0.0) -> None:
        """Has the pump read the mirror's status, as if that many seconds ago."""
        self._source.read(seconds_ago)

    def scrape(self) -> dict[str, float]:
        """All samples after a new reading, and the sample of a successful scrape."""
        self.read()
        return self.samples()

    def samples(self) -> dict[str, float]:
        """All samples as of the last reading."""
        found = {_series("up", {}): 1.0}
        for family in text_string_to_metric_families(generate_latest(self._registry).decode()):
            found |= {_series(each.name, each.labels): each.value for each in family.samples}
        return found


def _series(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in sorted({**labels, **_TARGET}.items()))}}}"


@dataclass(frozen=True)
class Scenario:
    """The samples that Prometheus scraped over some time, and the alerts that have to fire at the end, and no
    others."""

    name: str
    phases: Sequence[tuple[int, Samples]]
    """How many minutes, and the samples of each minute."""
    alerts: frozenset[str]

    def as_test(self) -> dict[str, Any]:
        """The scenario as `promtool test rules` reads it."""
        names = sorted({series for _, samples in self.phases for series in samples})
        minutes = sum(length for length, _ in self.phases)
        severity = {rule["alert"]: rule["labels"]["severity"] for rule in alert_rules()}
        expected = []
        for alert in sorted(self.alerts):
            labels = {"alertname": alert, "alertstate": "firing", "job": "mirror-pump", "severity": severity[alert]}
            text = ",".join(f'{name}="{value}"' for name, value in labels.items())
            expected.append({"labels": f"ALERTS{{{text}}}", "value": 1})
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [{"series": series, "values": self._values(series)} for series in names],
            "promql_expr_test": [
                {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minutes - 1}m", "exp_samples": expected}
            ],
        }

    def _values(self, series: str) -> str:
        parts = []
        for length, samples in self.phases:
            value = samples.get(series)
            parts.append(f"stale _x{length - 1}" if value is None else f"{value:f}+0x{length - 1}")
        return " ".join(parts)


def check(promtool: Path, scenarios: Sequence[Scenario], directory: Path) -> str:
    """The problems that promtool finds; empty if the rules do as the scenarios say."""
    file = directory / "alerts.test.yml"
    tests = [scenario.as_test() for scenario in scenarios]
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=120, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
