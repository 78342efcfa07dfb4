"""`mirror-pump config --show`, and variables that look like settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.settings.config import USER_SETTINGS, Settings
from mirror_pump.settings.values import unknown_variables


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MIRROR_PUMP_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def _shown(*arguments: str) -> dict[str, tuple[str, str]]:
    result = CliRunner().invoke(app, ["config", "--show", *arguments])
    assert result.exit_code == 0, result.output
    rows = [[part.strip() for part in line.split("  ") if part.strip()] for line in result.stdout.splitlines()]
    assert {name for name, _, _ in rows} == set(USER_SETTINGS)
    return {name: (value, source) for name, value, source in rows}


def test_each_value_is_shown_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text('convert_age = 4\nslot = "of_the_file"\nmerge_bytes = "1GiB"\n')
    monkeypatch.setenv("MIRROR_PUMP_SLOT", "of_the_environment")
    shown = _shown()
    assert shown["convert_age"] == ("4", "mirror-pump.toml")
    assert shown["merge_bytes"] == ("1GiB", "mirror-pump.toml")
    assert shown["slot"] == ("of_the_environment", "environment, MIRROR_PUMP_SLOT")
    assert shown["publication"] == ("mirror_pump", "default")
    assert shown["warehouse"] == ("-", "default")
    other = tmp_path / "other.toml"
    other.write_text("convert_age = 5\n")
    assert _shown("--config", str(other))["convert_age"] == ("5", str(other))
    monkeypatch.setenv("MIRROR_PUMP_CONVERT_AGE", "soon")
    refused = CliRunner().invoke(app, ["config", "--show"])
    assert (refused.exit_code, "MIRROR_PUMP_CONVERT_AGE" in refused.stderr) == (2, True)
    assert CliRunner().invoke(app, ["config", "--example", "--show"]).exit_code == 2


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:hunter%402@127.0.0.1:1/shop?sslpassword=hunter",
        "host=127.0.0.1 port=1 password='hunter 2' user=me",
        "postgresql://me:hunter2@[oops",
    ],
)
def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv("MIRROR_PUMP_DSN", dsn)
    for name in ("STORAGE_SECRET_KEY", "STORAGE_ACCESS_KEY", "STORAGE_SESSION_TOKEN", "LISTEN_TOKEN", "LOAD_TOKEN"):
        monkeypatch.setenv(f"MIRROR_PUMP_{name}", "hunter-0123456789")
    result = CliRunner().invoke(app, ["config", "--show"])
    assert result.exit_code == 0
    assert "hunter" not in result.output
    assert result.stdout.count("***") >= 6
    assert "is not shown" in result.stderr, "the database could not be asked"


def test_variables_that_look_like_settings_are_told() -> None:
    environment = {
        "MIRROR_PUMP_CONVERT_AEG": "1",
        "mirror_pump_convert_age": "1",
        "MIRROR_PUMP_BATCH_AGE": "0.2",
        "MIRROR_PUMP_COLOUR": "blue",
        "MIRROR_PUMP_LIMITS__RECOVERED_AFTER": "1",
        "MIRROR_PUMP_CATALOG_TOKEN": "t",
        "MIRROR_PUMP_TEST_POSTGRES": "/usr",
        # Of a service that is called mirror-pump, as in deploy/kubernetes, and of one called mirror-pump-page.
        "MIRROR_PUMP_SERVICE_HOST": "10.0.0.1",
        "MIRROR_PUMP_SERVICE_PORT": "9187",
        "MIRROR_PUMP_SERVICE_PORT_HTTP": "9187",
        "MIRROR_PUMP_PORT": "tcp://10.0.0.1:9187",
        "MIRROR_PUMP_PORT_9187_TCP_ADDR": "10.0.0.1",
        "MIRROR_PUMP_PAGE_PORT_80_TCP": "tcp://10.0.0.1:80",
    }
    assert list(unknown_variables(environment)) == [
        ("MIRROR_PUMP_BATCH_AGE", "MIRROR_PUMP_FILES_PER_HOUR"),
        ("MIRROR_PUMP_COLOUR", ""),
        ("MIRROR_PUMP_CONVERT_AEG", "MIRROR_PUMP_CONVERT_AGE"),
    ]


def _stderr(arguments: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mirror_pump.cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_mistyped_variable_is_named_before_what_it_leads_to() -> None:
    warning, error = map(orjson.loads, _stderr(["status"], MIRROR_PUMP_DNS="host=x").splitlines())
    assert (warning["level"], error["level"]) == ("warning", "error")
    assert "MIRROR_PUMP_DNS" in warning["event"]
    assert warning["remedy"] == "did you mean MIRROR_PUMP_DSN?"
    assert error["event"] == "no database was given"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["status", "--bogus"], {"MIRROR_PUMP_LOG_FORMAT": "human"}),
        (["status", "--log-format", "human", "--bogus"], {}),
        (["status", "--bogus", "--log-format=human"], {"MIRROR_PUMP_LOG_FORMAT": "json"}),
    ],
)
def test_wrong_usage_is_plain_text_off_a_terminal_where_that_is_wanted(
    arguments: list[str], environment: dict[str, str]
) -> None:
    lines = _stderr(arguments, **environment).splitlines()
    assert lines == ["mirror-pump: No such option: --bogus", "  what to do: see mirror-pump status --help"]
    assert orjson.loads(_stderr(["status", "--bogus"]))["event"] == "No such option: --bogus"
