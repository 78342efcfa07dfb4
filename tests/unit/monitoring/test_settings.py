"""What --listen and the OTEL_* variables request, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.errors import UsageError
from mirror_pump.http.access import Access
from mirror_pump.monitoring.otel_setup import Exports, exports_of, shut_down
from mirror_pump.settings.config import Settings, host_and_port

_ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9187", ("127.0.0.1", 9187)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("pump-1.example:80", ("pump-1.example", 80)),
        ("[::1]:9187", ("::1", 9187)),
        ("[::]:9187", ("::", 9187)),
        ("9187", ("127.0.0.1", 9187)),
        (":9187", ("127.0.0.1", 9187)),
    ],
)
def test_an_address_to_listen_at(text: str, address: tuple[str, int]) -> None:
    assert host_and_port(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "::1:9187", "host:65536", "host:-1", "a b:1", "[x y]:1", "h:1:2"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        host_and_port(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert Access.at(host, None).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no-such-host.invalid"])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        Access.at(host, None)
    assert "MIRROR_PUMP_LISTEN_TOKEN" in caught.value.remedy
    assert Access.at(host, "a token of some length").token is not None


def test_loads_need_a_token_of_their_own_where_reading_needs_one() -> None:
    for host in ("127.0.0.1", "192.0.2.7"):
        with pytest.raises(UsageError) as caught:
            Access.at(host, "a token of some length", loads=True)
        assert "MIRROR_PUMP_LOAD_TOKEN" in caught.value.remedy
        with pytest.raises(UsageError, match="the same"):
            Access.at(host, "a token of some length", loads=True, load_token="a token of some length")
        assert Access.at(host, "a token of some length", loads=True, load_token="another token").loads
    assert Access.at("127.0.0.1", None, loads=True).load_token is None
    with pytest.raises(UsageError):
        Access.at("192.0.2.7", None, loads=True, load_token="a token of some length")


def test_run_refuses_an_open_port_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MIRROR_PUMP_{name.upper()}", raising=False)
    result = CliRunner().invoke(app, ["run", "--dsn", "host=192.0.2.1", "--listen", "0.0.0.0:0"])
    assert result.exit_code == 2
    assert "MIRROR_PUMP_LISTEN_TOKEN" in result.stderr


def test_a_short_token_is_refused_and_never_shown() -> None:
    with pytest.raises(ValueError, match="16 or more") as caught:
        Settings(listen_token="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    assert "a-secret-of-length" not in repr(Settings(listen_token="a-secret-of-length"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "exports"),
    [
        ({}, Exports(None, None)),
        (_ENDPOINT, Exports("otlp", "otlp")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"}, Exports(None, "otlp")),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, Exports("otlp", None)),
        ({**_ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, Exports("otlp", None)),
        ({"OTEL_TRACES_EXPORTER": "console"}, Exports(None, "console")),
        ({**_ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus"}, Exports(None, "otlp")),
        ({**_ENDPOINT, "OTEL_SDK_DISABLED": "true"}, Exports(None, None)),
    ],
)
def test_what_the_environment_exports(environment: dict[str, str], exports: Exports) -> None:
    assert exports_of(environment) == exports


def test_an_export_that_never_ends_does_not_hold_up_the_end() -> None:
    hanging = threading.Event()
    ended: list[str] = []
    shut_down([lambda: ended.append("first"), hanging.wait, lambda: ended.append("last")], within=0.1)
    assert ended == ["first"]
    hanging.set()


_OFF = """
import sys
from mirror_pump.settings.config import Settings
from mirror_pump.monitoring.monitor import Monitor
observer = lambda step, **details: None
with Monitor(Settings(dsn="host=192.0.2.1"), open_port=None) as monitor:
    monitor.watch(Settings())
    assert monitor.observer(observer) is observer
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"opentelemetry", "uvicorn", "starlette", "prometheus_client"}, loaded
"""


def _python(program: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_pump_that_nobody_monitors_loads_none_of_it() -> None:
    done = _python(_OFF)
    assert done.returncode == 0, done.stderr
