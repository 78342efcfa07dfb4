"""Settings: precedence of their sources, and errors that name the place but never the value."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ByteSize

from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings, load_settings
from mirror_pump.settings.limits import InternalLimits


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may see the settings of the user who runs it."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MIRROR_PUMP_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_command_line_beats_environment_beats_file_beats_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mirror-pump.toml").write_text('convert_age = 4\nslot = "from_file"\npublication = "from_file"\n')
    monkeypatch.setenv("MIRROR_PUMP_SLOT", "from_environment")
    monkeypatch.setenv("MIRROR_PUMP_PUBLICATION", "from_environment")

    settings = load_settings({"publication": "from_option", "dsn": None})

    assert settings.publication == "from_option"
    assert settings.slot == "from_environment"
    assert settings.convert_age == 4
    assert settings.batch_bytes == 16 * 1024 * 1024
    assert settings.dsn == ""


def test_config_option_names_another_file(tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text('slot = "wrong"')
    other = tmp_path / "other.toml"
    other.write_text('slot = "right"')

    assert load_settings(config=other).slot == "right"


def test_missing_config_file_is_an_error_only_when_named(tmp_path: Path) -> None:
    assert load_settings().slot == "mirror_pump"
    with pytest.raises(UsageError, match="no such file"):
        load_settings(config=tmp_path / "absent.toml")


def test_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text('batch_aeg = 1\nslott = "x"')
    with pytest.raises(UsageError, match=r"mirror-pump\.toml: unknown keys batch_aeg, slott"):
        load_settings()


def test_a_former_key_is_told_with_what_took_its_place(tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text("batch_age = 0.2\n")
    with pytest.raises(UsageError, match="unknown key batch_age") as caught:
        load_settings()
    assert caught.value.remedy.startswith("batch_age is gone, see files_per_hour; known keys: ")


def test_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text("slot = ")
    with pytest.raises(UsageError, match=r"mirror-pump\.toml cannot be read"):
        load_settings()


def test_wrong_values_are_reported_by_their_place_without_the_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mirror-pump.toml").write_text('lock_timeout = "hunter1"')
    monkeypatch.setenv("MIRROR_PUMP_CONVERT_AGE", "hunter2")
    with pytest.raises(UsageError) as caught:
        load_settings({"segment_bytes": "hunter3"})

    message = str(caught.value)
    assert "lock_timeout in mirror-pump.toml" in message
    assert "MIRROR_PUMP_CONVERT_AGE" in message
    assert "--segment-bytes" in message
    assert "hunter" not in message


def test_secrets_are_not_in_the_repr() -> None:
    settings = load_settings(
        {"dsn": "postgresql://me:hunter2@host/db", "storage_access_key": "hunter2", "storage_secret_key": "hunter2"}
    )
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    assert settings.storage_properties == {"s3.access-key-id": "hunter2", "s3.secret-access-key": "hunter2"}


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/srv/lake", "file:///srv/lake"),
        ("/srv/my lake/", "file:///srv/my lake"),
        ("file:///srv/lake/", "file:///srv/lake"),
        ("s3://bucket/lake/", "s3://bucket/lake"),
    ],
)
def test_warehouse_becomes_a_uri(given: str, uri: str) -> None:
    assert Settings(warehouse=given).require_warehouse() == uri


def test_relative_warehouse_is_made_absolute(tmp_path: Path) -> None:
    assert Settings(warehouse="lake").require_warehouse() == f"file://{tmp_path}/lake"


@pytest.mark.parametrize("given", ["ftp://host/lake", "s3://", "file://host/lake", ""])
def test_warehouse_that_cannot_be_written_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--warehouse"):
        load_settings({"warehouse": given})


@pytest.mark.parametrize("slot", ["Mirror", "a-b", "", "x" * 64])
def test_slot_name_that_postgres_refuses_is_refused(slot: str) -> None:
    with pytest.raises(UsageError, match="--slot"):
        load_settings({"slot": slot})


def test_sizes_are_read_with_units() -> None:
    assert load_settings({"batch_bytes": "3MiB", "segment_bytes": "1000"}).batch_bytes == 3 * 1024 * 1024


def test_missing_dsn_says_where_to_give_it() -> None:
    with pytest.raises(UsageError) as caught:
        Settings().require_dsn()
    assert "MIRROR_PUMP_DSN" in caught.value.remedy


def test_settings_travel_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_PUMP_LIMITS__PROOF_TASK_BYTES", "8KiB")
    settings = load_settings({"dsn": "postgresql:///db", "storage_secret_key": "secret", "storage_fsync": False})
    assert pickle.loads(pickle.dumps(settings)) == settings
    monkeypatch.delenv("MIRROR_PUMP_LIMITS__PROOF_TASK_BYTES")
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


def test_the_environment_has_only_the_settings_that_were_named() -> None:
    settings = load_settings({"slot": "s", "storage_secret_key": "secret"})
    named = settings.environment(settings.model_fields_set)
    assert named == {"MIRROR_PUMP_SLOT": "s", "MIRROR_PUMP_STORAGE_SECRET_KEY": "secret"}


def test_internal_limits_come_from_the_environment_and_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_PUMP_LIMITS__UNSEAL_AFTER", "0.5")
    monkeypatch.setenv("MIRROR_PUMP_LIMITS__PROOF_TASK_BYTES", "8KiB")
    expected = InternalLimits(unseal_after=0.5, proof_task_bytes=ByteSize(8192))
    assert load_settings().limits == Settings().limits == expected
    assert Settings(limits=InternalLimits(index_patience=1)).limits.index_patience == 1


def test_internal_limits_are_no_keys_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text("[limits]\nunseal_after = 1")
    with pytest.raises(UsageError, match="unknown key limits") as caught:
        load_settings()
    assert "limits" not in caught.value.remedy


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LIMITS__UNSEAL_AFTER", "hunter2", "MIRROR_PUMP_LIMITS__UNSEAL_AFTER: "),
        ("LIMITS__NO_SUCH", "hunter2", "MIRROR_PUMP_LIMITS__NO_SUCH: "),
        ("LIMITS", "hunter2", "MIRROR_PUMP_LIMITS is not valid JSON"),
    ],
)
def test_wrong_internal_limits_are_reported_by_their_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"MIRROR_PUMP_{variable}", value)
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)
