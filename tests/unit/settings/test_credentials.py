"""Credentials by reference: from the environment, or from a file that may change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror_pump.errors import CredentialsError
from mirror_pump.settings.credentials import CredentialSource, is_reference, is_secret, without_secrets
from mirror_pump.storage_kinds import S3

KEYS = {"s3.access-key-id": "AKIA", "s3.secret-access-key": "a/b+c=", "s3.region": "eu"}


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MODAK_CREDENTIALS_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "text",
    [
        '{"access_key": "AKIA", "secret_key": "a/b+c=", "region": "eu"}',
        '\n {"s3.access-key-id": "AKIA", "s3.secret-access-key": "a/b+c=", "s3.region": "eu"}',
        "access_key=AKIA\nsecret_key=a/b+c=\nregion=eu\n",
        "# of the archive\n\n access_key = AKIA \n s3.secret-access-key = a/b+c=\nregion=eu",
    ],
)
def test_both_forms_are_understood(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAK_CREDENTIALS_COLD_2", text)
    source = CredentialSource("cold_2", S3)
    assert source.properties() == KEYS
    assert (source.place, source.from_file) == ("$MODAK_CREDENTIALS_COLD_2", False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "they are empty"),
        ("hunter2hunter2", "neither a JSON object nor lines"),
        ('{"access_key": "hunter2hunter2"', "neither a JSON object nor lines"),
        ('{"secret_key": 7}', "the value of s3.secret-access-key is no text"),
        ("secret_key=", "the value of s3.secret-access-key is no text"),
        ("password=hunter2hunter2", "'password' is no property"),
    ],
)
def test_others_are_refused_without_being_shown(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAK_CREDENTIALS_X", text)
    with pytest.raises(CredentialsError, match=reason) as caught:
        CredentialSource("x", S3).properties()
    assert "hunter2" not in f"{caught.value} {caught.value.remedy} {caught.value.__cause__!r}"


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = CredentialSource("archive", S3)
    with pytest.raises(CredentialsError) as missing:
        source.properties()
    assert "MODAK_CREDENTIALS_ARCHIVE_FILE" in str(missing.value)
    file = tmp_path / "keys"
    monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE_FILE", str(file))
    with pytest.raises(CredentialsError, match="cannot be read") as absent:
        source.properties()
    assert str(file) in str(absent.value)
    file.write_text("access_key=first")
    assert source.properties() == {"s3.access-key-id": "first"}
    # As secrets are renewed: another file takes the name.
    other = tmp_path / "other"
    other.write_text("access_key=later")
    other.rename(file)
    assert source.properties() == {"s3.access-key-id": "later"}
    assert source.from_file
    assert str(file) in source.place


def test_secrets_are_taken_out_of_texts() -> None:
    properties = {"s3.secret-access-key": "hunter2", "s3.region": "eu-central-1", "s3.session-token": "abc"}
    assert without_secrets("no hunter2 in eu-central-1, abc", properties) == "no *** in eu-central-1, abc"
    names = ("s3.access-key-id", "s3.session-token", "adls.sas-token", "gcs.oauth2.token", "adls.client-secret")
    assert [name for name in names if not is_secret(name)] == []
    assert not is_secret("s3.endpoint")


@pytest.mark.parametrize("text", ["wJalrXUtnFEMI/K7MDENG", "a-b", "1a", "", "$X"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    assert not is_reference(text)
