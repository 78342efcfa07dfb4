"""Kinds of object stores: how URIs are read, what other engines are told, and that nothing else knows the kinds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import mirror_pump
from mirror_pump.engine.spark_runtime.session import ICEBERG_PACKAGE, maven_packages
from mirror_pump.errors import CredentialsError, LakeError
from mirror_pump.lake.storage import StorageOptions, read_bytes
from mirror_pump.rest_catalog.catalog_source import storage_hints
from mirror_pump.settings.config import Settings, warehouse_uri
from mirror_pump.settings.credentials import CredentialSource
from mirror_pump.storage_kinds import KINDS, S3, StorageKind, kind_of, one_spelling

HOST = "account.dfs.core.windows.net"
ABFSS = f"abfss://lake@{HOST}"


def of(location: str) -> StorageKind:
    kind = kind_of(location)
    assert kind is not None
    return kind


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://lake/shop/", "s3://lake/shop"),
        ("gs://lake", "gs://lake"),
        ("gs://lake/a/b/", "gs://lake/a/b"),
        (f"{ABFSS}/shop/", f"{ABFSS}/shop"),
        (ABFSS, ABFSS),
        ("abfss://lake@account.blob.core.windows.net/x", f"{ABFSS}/x"),
    ],
)
def test_warehouses(text: str, uri: str) -> None:
    assert warehouse_uri(text) == uri


@pytest.mark.parametrize(
    "text", ["s3://", "gs://", "abfss://lake/shop", "abfss://lake@account/x", "s3a://lake/x", "oss://a/b"]
)
def test_others_are_refused_with_all_forms(text: str) -> None:
    with pytest.raises(ValueError, match="is not a warehouse") as refused:
        warehouse_uri(text)
    assert all(kind.form in str(refused.value) for kind in KINDS)


def test_locations_are_split() -> None:
    parts = {location: of(location).split(location) for location in ("s3://b/k/1", "gs://b", f"{ABFSS}/k/a@b")}
    assert list(parts.values()) == [("b", "k/1"), ("b", ""), ("lake", "k/a@b")]
    assert one_spelling(f"abfs://lake@{HOST}/x") == f"{ABFSS}/x"
    assert one_spelling("s3n://b/x") == "s3://b/x"
    for location in ("gs://b/a\tb", "gs://b/a//b", "gs://b/../x", f"{ABFSS}/a\\b", f"{ABFSS}/a./b"):
        with pytest.raises(LakeError, match="no object can have"):
            read_bytes(location, StorageOptions())
    for location in ("gs:///x", "abfss://lake/x"):
        with pytest.raises(LakeError, match="names no"):
            read_bytes(location, StorageOptions())


@pytest.mark.parametrize(
    ("location", "properties"),
    [
        ("s3://b/x", {"s3.endpoint": "http://h", "s3.secret-access-key": "secret", "s3.session-token": "token"}),
        ("gs://b/x", {"gcs.service.host": "http://h", "gcs.oauth2.token": "token"}),
        (f"{ABFSS}/x", {"adls.endpoint": "http://h", "adls.account-key": "secret", "adls.sas-token": "token"}),
    ],
)
def test_settings_are_properties_of_the_warehouses_kind(location: str, properties: Mapping[str, str]) -> None:
    given = {"storage_endpoint": "http://h", "storage_secret_key": "secret", "storage_session_token": "token"}
    assert Settings.model_validate({"warehouse": location, **given}).storage_properties == properties


def test_java_and_rest_clients_get_their_names_and_what_is_vended() -> None:
    properties = {"adls.endpoint": "http://h/account", "adls.account-key": "secret", "adls.sas-token": "sig=1"}
    java = {f"adls.connection-string.{HOST}": "http://h/account", f"adls.sas-token.{HOST}": "sig=1"}
    key = {"adls.auth.shared-key.account.name": "account", "adls.auth.shared-key.account.key": "secret"}
    assert of(ABFSS).java_properties(f"{ABFSS}/x", properties) == java | key
    storage = StorageOptions(properties | {"s3.region": "of another kind"})
    described = {"adls.account-name": "account", "adls.endpoint": "http://h/account"}
    told = storage_hints(f"{ABFSS}/t/metadata/1.metadata.json", storage, credentials=True)
    assert told == described | java | {"adls.sas-token": "sig=1"}, "not the account's key"
    token = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "1", "gcs.service-account-key": "{}"}
    vended = {name: value for name, value in token.items() if "oauth2" in name}
    assert storage_hints("gs://b/t/metadata/1.metadata.json", StorageOptions(token), credentials=True) == vended
    assert storage_hints("gs://b/t/metadata/1.metadata.json", StorageOptions(token), credentials=False) == {}


def test_a_service_accounts_key_file_is_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"type": "service_account", "client_email": "a@b", "private_key": "hunter2"}
    monkeypatch.setenv("MODAK_CREDENTIALS_G", json.dumps(document))
    properties = CredentialSource("g", of("gs://b")).properties()
    assert {name: json.loads(value) for name, value in properties.items()} == {"gcs.service-account-key": document}
    with pytest.raises(CredentialsError, match="is no property; known: access_key"):
        CredentialSource("g", S3).properties()


def test_spark_gets_the_bundles_of_the_kinds_once() -> None:
    packages = maven_packages("gs://a", "file:///b", f"{ABFSS}/x", "gs://c")
    assert [package.split(":")[1] for package in packages[2:]] == ["iceberg-gcp-bundle", "iceberg-azure-bundle"]
    assert S3.java_bundle.split(":")[2] == ICEBERG_PACKAGE.split(":")[2]


def test_no_other_module_knows_the_kinds() -> None:
    root = Path(mirror_pump.__file__).parent
    known = re.compile(r'startswith\(.*(?:s3|gs|abfss?)://|iceberg\.(?:aws|gcp|azure)|S3Store|"s3\.[a-z]')
    # ClickHouse is told keys of S3 by names of its own.
    excepted = {root / "ops" / "reads" / "catalog_snippets.py"}
    modules = [path for path in root.rglob("*.py") if "storage_kinds" not in path.parts]
    assert [path for path in modules if path not in excepted and known.search(path.read_text())] == []
