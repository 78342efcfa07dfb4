"""What becomes of a Spark that cannot start: an error that says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.further

_START = """
import json, sys
from pathlib import Path
from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session
from mirror_pump.errors import MirrorPumpError
from mirror_pump.runtime.telemetry import configure_logging
configure_logging("json")
log = Path(sys.argv[1]) if sys.argv[1:] else None
try:
    session = spark_session(SparkSettings(master="local[1]", jars=False, log=log))
    local = Path(sys.argv[2]) if sys.argv[2:] else None
    made = [str(path) for path in local.rglob("blockmgr-*")] if local else []
    print(json.dumps(["started", session.sparkContext.getConf().get("spark.network.timeout"), *made]))
    session.stop()
except MirrorPumpError as error:
    print(json.dumps([type(error).__name__, str(error), error.remedy]))
"""


def start(environment: Mapping[str, str], *arguments: str) -> tuple[list[str], str]:
    """The kind of the result with its texts, and what was logged."""
    variables = {**{key: value for key, value in os.environ.items() if key != "PYSPARK_SUBMIT_ARGS"}, **environment}
    done = subprocess.run(
        [sys.executable, "-c", _START, *arguments],
        capture_output=True, env=variables, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def settings_file(directory: Path, text: str) -> Mapping[str, str]:
    (directory / "spark-defaults.conf").write_text(text)
    return {"SPARK_CONF_DIR": str(directory)}


def test_a_network_timeout_as_documented_starts(tmp_path: Path) -> None:
    """docs/cluster.md. And what Spark puts on disk by default is in a directory that only its user can enter."""
    (temporary := tmp_path / "temporary").mkdir()
    given = {**settings_file(tmp_path, "spark.network.timeout 30s"), "TMPDIR": str(temporary)}
    (kind, seconds, *made), _ = start(given, str(tmp_path / "spark.log"), str(temporary))
    assert (kind, seconds) == ("started", "30s")
    assert [Path(path).parent for path in made] == [temporary / f"mirror-pump-{os.getuid()}"]


def test_settings_that_spark_refuses_are_told(tmp_path: Path) -> None:
    (kind, text, remedy), _ = start(settings_file(tmp_path, "spark.network.timeout 8s"))
    assert kind == "UsageError"
    assert "spark.network.timeout=8000ms must be greater than" in text
    assert "\n" not in text
    assert "spark-defaults.conf" in remedy


@pytest.mark.parametrize("to_file", [False, True])
def test_a_java_that_dies_at_its_start_is_told(tmp_path: Path, *, to_file: bool) -> None:
    log = tmp_path / "spark.log"
    (kind, text, remedy), logged = start({"JAVA_TOOL_OPTIONS": "-Xnonsense"}, *([str(log)] if to_file else []))
    assert kind == "TaskFailed"
    assert "Java ended before Spark had started" in text
    assert (str(log) if to_file else "log lines before") in remedy
    assert "-Xnonsense" in (log.read_text() if to_file else logged)
