"""The services of deploy/compose, started as processes by the very commands and environments that the file names."""

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

import pytest
import yaml

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.postgres import EmbeddedPostgres, free_port
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
    """The pump's."""
    return free_port()


@pytest.fixture
def services(
    postgres: EmbeddedPostgres, database: Database, s3: S3Server, port: int, tmp_path: Path
) -> Iterator[Services]:
    """The services of the compose file, with the hosts, ports and paths of this machine."""
    secrets = {
        "POSTGRES_PASSWORD": postgres.password,
        "S3_ACCESS_KEY": "mirror",
        "S3_SECRET_KEY": "the storage's secret",
        "LISTEN_TOKEN": _TOKEN,
        "GRAFANA_PASSWORD": "unused",
    }
    spark, web, worker_web = free_port(), free_port(), free_port()
    replacements = {
        "mirror@postgres:5432/shop": f"postgres@127.0.0.1:{postgres.port}/{database.name}",
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
        # As in the image: its programs come first.
        "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
        "JAVA_HOME": str(find_java_home()),
        # Containers resolve each other's names; this machine need not even resolve its own.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    made = Services(load(COMPOSE, secrets), image_entrypoint(), replacements, environment, tmp_path)
    yield made
    made.kill()


def _get(url: str, token: str | None = None) -> Any:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def _readiness() -> list[str]:
    """The command of Kubernetes's readiness probe of the pump."""
    (pump,) = (each for each in manifests() if each["kind"] == "Deployment" and each["metadata"]["name"] == "mirror-pump")
    command: list[str] = pump["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    return command


@pytest.mark.slow
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one; `sql` reads it here")
def test_the_services_mirror_a_table_on_the_cluster_and_are_monitored(
    services: Services, database: Database, s3: S3Server, port: int, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders SELECT g, 'v' FROM generate_series(1, 100) g"
    )
    cluster = [services.start("spark-master"), services.start("spark-worker")]
    services.run("bucket")
    services.run("init")
    await_true(lambda: services.healthy("spark-master") and services.healthy("spark-worker"), 60, "the cluster is healthy")
    pump = services.start("pump")
    maintainer = services.start("maintainer")
    await_true(lambda: services.healthy("pump"), 60, f"the pump is healthy, see {tmp_path}")

    # As `docker compose up --scale pump=2` does: it waits, and both count as ready.
    other_port = {"MIRROR_PUMP_LISTEN": f"127.0.0.1:{free_port()}"}
    standby = services.start("pump", other_port, log="standby")
    await_true(lambda: services.healthy("pump", other_port), 60, "the standby is healthy")

    services.run("pump", "register", "public.orders")
    database.execute("UPDATE orders SET v = 'w' WHERE id <= 10")
    services.run("pump", "wait", "--now", "--timeout", "60")
    counted = services.run("sql", "SELECT count(*), count(*) FILTER (v = 'w') FROM orders", "--format", "csv")
    assert counted.splitlines()[1] == "100,10"
    assert any(name.startswith("lake/shop/") for name in s3.objects)
    for extra in ({}, other_port):
        await_true(lambda extra=extra: services.succeeds("pump", _readiness(), extra), 30, "leader and standby are ready")
    assert s3.keys == {"mirror"}

    # The maintainer works beside the pump on the same cluster.
    services.run("pump", "maintain", "public.orders", "--no-wait")
    done = "SELECT phase, details FROM modak.op_log WHERE op_kind = 'maintenance' AND phase <> 'running'"
    await_true(lambda: bool(database.rows(done)), 90, f"the maintainer has served a request, see {tmp_path}")
    assert {phase for phase, _ in database.rows(done)} == {"done"}

    with pytest.raises(urllib.error.HTTPError, match="401"):
        _get(f"http://127.0.0.1:{port}/metrics")
    _monitored(services, port, tmp_path)

    for process in (standby, pump, maintainer):
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in (standby, pump, maintainer)] == [0, 0, 0]
    assert all(process.poll() is None for process in cluster)


def _monitored(services: Services, port: int, directory: Path) -> None:
    """Prometheus scrapes the pump with the configuration of deploy/, but for names and paths. All rules and all queries
    of the dashboard can be evaluated."""
    try:
        program = executable("prometheus")
    except NoPrometheus:
        # All else was tested.
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
            raise AssertionError(error.read().decode()) from error
        except OSError:
            return None
        assert answer["status"] == "success"
        return answer["data"]

    def led() -> bool:
        data = result("query", query='mirror_pump_led{job="mirror-pump"}')
        return data is not None and [each["value"][1] for each in data["result"]] == ["1"]

    await_true(led, 30, "Prometheus has scraped the pump")
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
