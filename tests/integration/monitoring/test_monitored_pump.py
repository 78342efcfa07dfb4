"""A pump as a process that exports telemetry and listens: it reports what the database and the lake hold."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from playwright.sync_api import Browser, expect
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.program import Program
from tests.support.cli import RunCommand, ThreadedProgram
from tests.support.otlp import OtlpReceiver, otlp_receiver

_HOSTILE = '<img src=x onerror="window.hacked=1">'


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


SucceedingCommand = Callable[..., str]


@pytest.fixture
def done(run: RunCommand) -> SucceedingCommand:
    """Runs a command in this process, which has to succeed, and returns its stdout."""

    def succeeding(*arguments: str) -> str:
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    return succeeding


@pytest.fixture
def program(database: Database, tmp_path: Path, slot: str, done: SucceedingCommand) -> Program:
    """The program on an initialised mirror, with two tables to register, one of which has a hostile name."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g",
        f'CREATE TABLE "{_HOSTILE.replace(chr(34), chr(34) * 2)}" (id int PRIMARY KEY)',
    )
    done("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    return ThreadedProgram(database.dsn, tmp_path)


class Listening:
    """A pump that listens, as its clients see it."""

    def __init__(self, program: Program, directory: Path, name: str) -> None:
        self._log = directory / name
        self.process = program.start("run", "--listen", "127.0.0.1:0", log=name)
        await_true(lambda: self.logged("listening"), 60, f"it listens, see {self._log}")
        (line,) = self.logged("listening")
        self.url = str(line["url"])

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def get(self, path: str) -> tuple[int, Any]:
        """The HTTP status, and the JSON document."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def metrics(self) -> dict[str, Metric]:
        """Families of /metrics by name, as Prometheus's own parser reads them."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}

    def value(self, family: str, **labels: str) -> float | None:
        """The value of a gauge or a counter."""
        found = self.metrics().get(family)
        samples = [] if found is None else [each for each in found.samples if not each.name.endswith("_created")]
        return next((each.value for each in samples if each.labels == labels), None)


Listen = Callable[..., Listening]


@pytest.fixture
def listen(program: Program, database: Database, tmp_path: Path) -> Iterator[Listen]:
    """Starts pumps that listen and constantly export to `collector`, and stops them at the end."""
    with ExitStack() as stack:

        def start(name: str, collector: str = "") -> Listening:
            environment = {
                "MIRROR_PUMP_LIMITS__STATUS_INTERVAL": "0.3",
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
                "OTEL_METRIC_EXPORT_INTERVAL": "300",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
                "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            }
            running = Listening(ThreadedProgram(database.dsn, tmp_path, environment), tmp_path, name)
            stack.callback(program.kill, running.process)
            return running

        yield start


def trace_of(spans: list[Span]) -> tuple[Span, list[Span]] | None:
    """A batch with changes and its children, once all of them were exported."""
    for batch in spans:
        changes = {each.key: each.value.int_value for each in batch.attributes}.get("mirror_pump.changes")
        children = [span for span in spans if span.parent_span_id == batch.span_id]
        if batch.name == "batch" and changes and len(children) == 4:
            return batch, children
    return None


def test_a_pump_tells_collectors_probes_and_people_the_same(
    done: SucceedingCommand,
    database: Database,
    receiver: OtlpReceiver,
    listen: Listen,
    request: pytest.FixtureRequest,
) -> None:
    pump = listen("leader.log", receiver.url)
    await_true(pump.ready, 60, "it streams")
    done("register", "public.t", '"' + _HOSTILE.replace('"', '""') + '"')
    assert pump.get("/healthz") == (200, {"status": "ok", "role": "leader"})
    database.execute("UPDATE t SET v = 'w'")
    done("wait", "--now", "--timeout", "60")

    # Metrics: the same on both ways.
    await_true(lambda: pump.value("mirror_pump_changes") == 100, 20, "100 changes are counted")
    await_true(lambda: pump.value("mirror_pump_tables", state="live") == 2, 20, "two tables are live")
    assert pump.value("mirror_pump_tables", state="failed") == 0
    assert pump.value("mirror_pump_copy_rows") == 100
    assert pump.value("mirror_pump_leader") == 1
    assert pump.value("mirror_pump_database_reachable") == 1
    assert (pump.value("mirror_pump_slot_retained_wal_bytes") or 0) > 0
    # It is read from time to time, and there is none before the first change.
    await_true(lambda: pump.value("mirror_pump_frontier_lag_seconds") is not None, 20, "the lag is known")
    assert 0 <= (pump.value("mirror_pump_frontier_lag_seconds") or 0) < 60

    def exported() -> float | None:
        metric = receiver.metric("mirror_pump.changes")
        return None if metric is None else metric.sum.data_points[0].as_int

    await_true(lambda: exported() == 100, 20, "and exported")

    def live() -> int | None:
        gauge = receiver.metric("mirror_pump.tables")
        points = [] if gauge is None else gauge.gauge.data_points
        return {each.attributes[0].value.string_value: int(each.as_int) for each in points}.get("live")

    await_true(lambda: live() == 2, 20, "and so are the tables")
    resource = receiver.resource()
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("mirror-pump", "test")

    # Traces.
    await_true(lambda: trace_of(receiver.spans()), 20, "a batch and its parts are exported as spans")
    found = trace_of(receiver.spans())
    assert found is not None
    batch, children = found
    assert sorted(child.name for child in children) == ["decode", "publish", "receive", "write"]
    for child in children:
        assert child.trace_id == batch.trace_id
        assert batch.start_time_unix_nano <= child.start_time_unix_nano
        assert child.start_time_unix_nano <= child.end_time_unix_nano <= batch.end_time_unix_nano

    # The status, by HTTP and by the command. By HTTP it may be some seconds old.
    printed = json.loads(done("status", "--json"))
    moving = {"lag_bytes", "lag_seconds", "frontier", "equality_deletes_age", "maintenance"}

    def steady(document: dict[str, Any]) -> list[dict[str, Any]]:
        tables = document.get("tables", [])
        return [{key: value for key, value in table.items() if key not in moving} for table in tables]

    await_true(lambda: steady(pump.get("/status.json")[1]) == steady(printed), 60, "both say the same of the tables")
    code, document = pump.get("/status.json")
    assert code == 200
    assert document.keys() == printed.keys()
    assert [table.keys() for table in document["tables"]] == [table.keys() for table in printed["tables"]]

    # The page, with the hostile name. If there is no browser, everything else was tested.
    browser: Browser = request.getfixturevalue("browser")
    page = browser.new_page()
    page.goto(pump.url)
    expect(page.locator("#tables tr")).to_have_count(2)
    expect(page.locator("#tables")).to_contain_text(_HOSTILE.replace('"', '""'))
    expect(page.locator("#phase")).to_have_text("streaming")
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    page.close()


@pytest.mark.further
def test_a_standby_is_alive_but_not_ready_until_it_leads(program: Program, listen: Listen) -> None:
    leader = listen("leader.log")
    await_true(leader.ready, 60, "the first streams")
    standby = listen("standby.log")
    await_true(lambda: standby.get("/healthz")[1]["role"] == "standby", 60, "the second waits")
    code, answer = standby.get("/readyz")
    assert (code, answer["reason"]) == (503, "standby: another pump leads")
    assert standby.value("mirror_pump_leader") == 0
    await_true(lambda: standby.value("mirror_pump_led") == 1, 20, "it knows that another leads")
    await_true(lambda: len(standby.get("/status.json")[1]["standbys"]) == 1, 20, "it lists itself")
    leader.process.send_signal(signal.SIGTERM)
    assert leader.process.wait(60) == 0
    await_true(standby.ready, 60, "it takes over")
    assert standby.value("mirror_pump_leader") == 1


@pytest.mark.further
def test_neither_clients_nor_a_dead_collector_hold_up_the_pump(
    program: Program, database: Database, listen: Listen, done: SucceedingCommand
) -> None:
    # A collector that accepts connections and never answers.
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, ExitStack() as clients:
        pump = listen("pump.log", f"http://127.0.0.1:{silent.getsockname()[1]}")
        await_true(pump.ready, 60, "it streams")
        done("register", "public.t")
        for _ in range(100):
            client = clients.enter_context(
                closing(socket.create_connection(("127.0.0.1", int(pump.url.rpartition(":")[2])), timeout=60))
            )
            client.sendall(b"GET /status.json HTTP/1.1\r\nHost: local")
        database.execute("UPDATE t SET v = 'w'")
        done("wait", "--now", "--timeout", "30")
        program.stop(pump.process, timeout=60)
        exporters = [line["exporter"] for line in pump.logged("telemetry is not exported")]
        assert len(exporters) == len(set(exporters)), "each exporter complains once an hour"


@pytest.mark.further
def test_probes_answer_while_the_server_is_down(tmp_path: Path) -> None:
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        dsn = f"host=127.0.0.1 port={nobody.getsockname()[1]} dbname=shop"
        program = Program(dsn, tmp_path)
        pump = Listening(program, tmp_path, "pump.log")
        try:
            await_true(lambda: pump.logged("waiting for the server"), 30, "it waits")
            assert pump.get("/healthz") == (200, {"status": "ok", "role": "starting"})
            assert pump.get("/readyz")[0] == 503
            assert pump.get("/status.json")[0] == 503
            assert pump.value("mirror_pump_database_reachable") == 0
            pump.process.send_signal(signal.SIGTERM)
            assert pump.process.wait(20) == 0
        except subprocess.TimeoutExpired:
            pytest.fail("it did not stop")
        finally:
            program.kill(pump.process)
