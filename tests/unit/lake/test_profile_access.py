"""Which credentials open which location, in the process that knows the profiles and in the tasks that it sends."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from mirror_pump.errors import ConnectionLost, CredentialsError, LakeError
from mirror_pump.lake.profile_access import ProfileAccess
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.settings.storage_profiles import StorageProfile, overlapping

SETTINGS = {"s3.endpoint": "http://own", "s3.access-key-id": "own", "s3.secret-access-key": "hidden-own"}
OWN = StorageProfile("default", "s3://lake/shop", {"s3.region": "eu"}, None, is_default=True)
ARCHIVE = StorageProfile("archive", "s3://archive/shop", {"s3.endpoint": "http://archive"}, "archive")
SECOND = StorageProfile("second", "s3://lake/second", {"s3.region": "us"})
TABLE = "s3://archive/shop/public/t-1/data/x.parquet"


@dataclass
class Profiles:
    """A catalog of profiles."""

    known: list[StorageProfile] = field(default_factory=lambda: [OWN, ARCHIVE, SECOND])
    away: bool = False

    def load(self) -> list[StorageProfile]:
        if self.away:
            raise ConnectionLost("away")
        return list(self.known)


@pytest.fixture
def profiles() -> Profiles:
    return Profiles()


@pytest.fixture
def storage(profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> StorageOptions:
    monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE", '{"access_key": "theirs", "secret_key": "hidden-theirs"}')
    return StorageOptions(profiles=ProfileAccess(SETTINGS, profiles.load))


def sent(storage: StorageOptions) -> StorageOptions:
    copy = pickle.loads(pickle.dumps(storage))
    assert isinstance(copy, StorageOptions)
    return copy


@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("s3://lake/shop", {**SETTINGS, "s3.region": "eu"}),
        ("s3://lake/shop/public/t/data/x", {**SETTINGS, "s3.region": "eu"}),
        (
            TABLE,
            {"s3.endpoint": "http://archive", "s3.access-key-id": "theirs", "s3.secret-access-key": "hidden-theirs"},
        ),
        ("s3://lake/second/x", {**SETTINGS, "s3.region": "us"}),
    ],
)
def test_a_location_is_reached_as_its_warehouse(
    storage: StorageOptions, location: str, wanted: Mapping[str, str]
) -> None:
    assert storage.properties_of(location) == wanted
    assert sent(storage).properties_of(location) == wanted


def test_a_task_goes_nowhere_that_it_was_not_told_of(storage: StorageOptions) -> None:
    """A bucket of that name may be another one with other credentials."""
    task = sent(storage)
    for location in ("s3://lake/shopping/x", "s3://new/x"):
        with pytest.raises(LakeError, match="no storage profile's warehouse"):
            task.properties_of(location)
        # Where `init` had its warehouse before.
        assert storage.properties_of(location) == SETTINGS


def test_a_profile_that_was_added_is_found(storage: StorageOptions, profiles: Profiles) -> None:
    assert "s3.region" not in storage.properties_of("s3://new/x")
    profiles.known.append(StorageProfile("new", "s3://new", {"s3.region": "ap"}))
    assert storage.properties_of("s3://new/x")["s3.region"] == "ap"
    # What was known goes on while the database is away.
    profiles.away = True
    assert storage.properties_of("s3://elsewhere/x") == SETTINGS


def test_without_credentials_the_error_names_profile_and_variable(
    storage: StorageOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODAK_CREDENTIALS_ARCHIVE")
    for found in (storage, sent(storage)):
        with pytest.raises(CredentialsError, match=r"profile archive: .*MODAK_CREDENTIALS_ARCHIVE"):
            found.properties_of(TABLE)
        # The others are not concerned.
        assert found.properties_of("s3://lake/shop/x")["s3.access-key-id"] == "own"
        assert "the frontier does not move" in found.remedy_of(TABLE)


def test_nothing_is_shown(storage: StorageOptions) -> None:
    for found in (storage, sent(storage), StorageOptions(SETTINGS)):
        assert "hidden" not in f"{found!r} {found.profiles!r} {found}"


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("s3://a/b", "s3://a/b", True),
        ("s3://a/b", "s3://a/b/c", True),
        ("s3://a/b/c", "s3://a/b", True),
        ("s3://a/b", "s3://a/bc", False),
        ("file:///a", "file:///a/b", True),
        ("", "s3://a", False),
    ],
)
def test_overlapping_warehouses(first: str, second: str, overlap: bool) -> None:
    found = overlapping(StorageProfile("x", first), [StorageProfile("x", second), StorageProfile("y", second)])
    assert (found is not None) is overlap
