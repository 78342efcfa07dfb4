"""Kinds of object stores: how URIs are read, what other engines are told, and that nothing else knows the kinds."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from obstore.store import MemoryStore

import mirror_pump
from mirror_pump.engine.spark_runtime.session import ICEBERG_PACKAGE, maven_packages
from mirror_pump.errors import CredentialsError, LakeError, OutcomeUnknown
from mirror_pump.lake.profile_access import ProfileAccess
from mirror_pump.lake.storage import StorageOptions, read_bytes, storage_of
from mirror_pump.rest_catalog.catalog_source import storage_hints
from mirror_pump.settings.config import Settings, warehouse_uri
from mirror_pump.settings.credentials import CredentialSource
from mirror_pump.settings.storage_profiles import DEFAULT_PROFILE, StorageProfile
from mirror_pump.storage_kinds import KINDS, S3, StorageKind, kind_of, one_spelling
from mirror_pump.storage_kinds.object_files import object_files, output_stream
from mirror_pump.tables.put_if_absent import put_if_absent

HOST = "account.dfs.core.windows.net"
ABFSS = f"abfss://lake@{HOST}"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIhunter2\n-----END PRIVATE KEY-----\n"
TOKEN = {"gcs.oauth2.token": "hunter2"}


def key_document(private_key: str) -> dict[str, str]:
    document = {"type": "service_account", "client_email": "a@b", "private_key_id": "k", "private_key": private_key}
    return {"gcs.service-account-key": json.dumps(document)}


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
    document = {"type": "service_account", "client_email": "a@b", "private_key": PEM}
    monkeypatch.setenv("MODAK_CREDENTIALS_G", json.dumps(document))
    properties = CredentialSource("g", of("gs://b")).properties()
    assert {name: json.loads(value) for name, value in properties.items()} == {"gcs.service-account-key": document}
    with pytest.raises(CredentialsError, match="is no property; known: access_key"):
        CredentialSource("g", S3).properties()


@pytest.mark.parametrize(
    ("location", "properties"),
    [
        # obstore would show these by their bytes, as numbers.
        ("gs://b/x", key_document(PEM.replace("\n", "\\n"))),
        ("gs://b/x", key_document(PEM.replace("\n", " "))),
        # A key that only obstore knows to be none.
        ("gs://b/x", key_document(PEM)),
        ("gs://b/x", {"gcs.service-account-key": '{"private_key": "hunter2'}),
        ("gs://b/x", {"gcs.oauth2.token": "hunter2\n"}),
        (f"{ABFSS}/x", {"adls.endpoint": "127.0.0.1:10", "adls.account-key": "hunter2"}),
        (f"{ABFSS}/x", {"adls.endpoint": "http://127.0.0.1:1/a", "adls.token": "hunter2\nx"}),
        (f"{ABFSS}/x", {"adls.endpoint": "http://127.0.0.1:1/a", "adls.sas-token": "sig=hunter2ü"}),
    ],
)
def test_stores_that_cannot_be_opened_are_lake_errors_without_credentials(
    location: str, properties: Mapping[str, str]
) -> None:
    for use in (read_bytes, lambda *given: put_if_absent(given[0], b"x", given[1])):
        with pytest.raises(LakeError) as failed:
            use(location, StorageOptions(properties))
        error: BaseException | None = failed.value
        while error is not None:
            shown = f"{error} {getattr(error, 'remedy', '')}"
            assert not any(secret in shown for secret in ("hunter2", ", ".join(map(str, b"hunter2"))))
            error = error.__cause__ or error.__context__


@pytest.mark.parametrize("variable", ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"])
@pytest.mark.parametrize("other", ["there", "missing"])
def test_a_key_by_reference_goes_before_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, other: str
) -> None:
    pem = (
        rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    )
    environments = key_document(pem)["gcs.service-account-key"].replace("a@b", "other@b")
    if variable == "GOOGLE_SERVICE_ACCOUNT":
        file = tmp_path / "key.json"
        if other == "there":
            file.write_text(environments)
        monkeypatch.setenv(variable, str(file))
    else:
        monkeypatch.setenv(variable, environments if other == "there" else "")
    store = of("gs://b").object_store(f"gs://{variable.lower()}-{other}", key_document(pem))
    # Signed by the key itself, without a request.
    assert "&X-Goog-Credential=a%40b" in obstore.sign(store, "GET", "x", timedelta(minutes=1))


@pytest.mark.parametrize("variable", ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"])
def test_a_variable_that_contradicts_credentials_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/none")
    with pytest.raises(LakeError, match="cannot open gs://other/x") as failed:
        read_bytes("gs://other/x", StorageOptions(TOKEN))
    assert failed.value.remedy.endswith(f"unset ${variable}")


@pytest.mark.parametrize(
    ("location", "text", "fault"),
    [
        ("gs://b", key_document(PEM.replace("\n", " "))["gcs.service-account-key"], "no PEM text"),
        ("gs://b", json.dumps({"service_account_key": "{}"}), "no JSON document with a private_key"),
        (ABFSS, json.dumps({"token": "hunter2\nx"}), "line break"),
    ],
)
def test_credentials_that_cannot_be_right_are_refused_when_read(
    monkeypatch: pytest.MonkeyPatch, location: str, text: str, fault: str
) -> None:
    monkeypatch.setenv("MODAK_CREDENTIALS_G", text)
    with pytest.raises(CredentialsError, match=fault) as refused:
        CredentialSource("g", of(location)).properties()
    assert "hunter2" not in str(refused.value)


def test_credentials_go_to_the_account_that_they_are_meant_for() -> None:
    """Locations come from files of a table, which others may have written."""
    given = {"storage_session_token": "hunter2", "storage_secret_key": "secret"}
    profile = StorageProfile(DEFAULT_PROFILE, f"{ABFSS}/shop")
    azure, google = (Settings.model_validate({"warehouse": root, **given}) for root in (ABFSS, "gs://b"))
    access = ProfileAccess(azure.storage_properties, lambda: [profile])
    for storage in (storage_of(azure), StorageOptions(profiles=access)):
        properties = {"adls.sas-token": "hunter2", "adls.account-key": "secret"}
        assert storage.properties_of(f"abfss://other@{HOST}/x") == properties
        assert storage.properties_of("abfss://lake@other.dfs.core.windows.net/x") == {}
        with pytest.raises(LakeError, match="is in another account than"):
            read_bytes("abfss://lake@account.blob.evil.invalid/x", storage)
    assert storage_of(google).properties_of("gs://b/x") == TOKEN
    assert storage_of(google, "s3://b/t").properties_of("s3://b/t/x") == {
        "s3.session-token": "hunter2",
        "s3.secret-access-key": "secret",
    }
    assert storage_of(google).properties_of(f"{ABFSS}/x") == {}
    with pytest.raises(LakeError, match="is in another account than"):
        storage_of(google).properties_of("abfss://c@account.blob.evil.invalid/x")


def test_a_file_that_is_not_written_to_its_end_is_not_there() -> None:
    store = MemoryStore()
    files = object_files(store)

    def fail() -> None:
        with output_stream(files, "part") as stream:
            stream.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    left_open = files.open_output_stream("open")
    left_open.write(b"half")
    del left_open
    gc.collect()
    assert [entry for chunk in store.list() for entry in chunk] == []
    with suppress(RuntimeError):
        fail()
    with output_stream(files, "whole") as stream:
        stream.write(b"all")
    assert files.open_input_file("whole").read() == b"all"


def test_a_put_whose_repetition_cannot_be_made_is_of_unknown_outcome() -> None:
    """The credentials' file is broken after the first request, which had no answer."""

    class Changing:
        first = True

        def properties_of(self, location: str) -> Mapping[str, str]:
            assert location == f"{ABFSS}/x"
            if self.first:
                self.first = False
                return {"adls.endpoint": "http://127.0.0.1:1/a", "adls.token": "t"}
            raise CredentialsError("there are none", "give some")

        def remedy_of(self, location: str) -> str:
            return f"give some for {location}"

    with pytest.raises(OutcomeUnknown, match="not certain"):
        put_if_absent(f"{ABFSS}/x", b"x", StorageOptions(profiles=Changing()))


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
