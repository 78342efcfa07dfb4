"""Clients with tokens of an issuer that is not the tests' own (oidc-provider): they get these by client credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from structlog.testing import capture_logs

from mirror_pump.ops.clients.token_issuer import TokenCheck, TokenIssuer, TokenRefused
from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.rest_catalog.lake_catalog_source import LakeCatalogSource
from mirror_pump.tables.table.table import Table
from tests.support.catalog_kinds import ROWS, CatalogPlace, rows
from tests.support.oidc_issuer import AUDIENCE, CLIENT, SECRET, OidcIssuer, oidc_issuing
from tests.support.rest_catalog import ServedMirror, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcIssuer]:
    with oidc_issuing() as issuer:
        if issuer is None:
            pytest.skip("no oidc-provider: `make test` brings it by npm")
        yield issuer


@pytest.fixture
def server(provider: OidcIssuer, tmp_path: Path) -> Iterator[ServedMirror]:
    """The warehouse `lake`, of whose tables the client may write `s.t`."""
    access = tmp_path / "access.toml"
    access.write_text(
        f'[issuer]\nurl = "{provider.url}"\naudience = "{AUDIENCE}"\n'
        f'[[grant]]\nto = ["{CLIENT}"]\ntables = ["s.t"]\nrights = ["write"]\n'
    )
    with ExitStack() as closed:
        catalog = closed.enter_context(closing(CatalogPlace("sqlite", (tmp_path / "lake").as_uri()).open()))
        for name in ("s.t", "s.hidden"):
            Table.create(catalog, name, ROWS).append(rows(1, 2))
        source = LakeCatalogSource("lake", catalog, read_write=True)
        yield closed.enter_context(serving(source, access_file=str(access)))


def test_engines_get_their_tokens_themselves(provider: OidcIssuer, server: ServedMirror) -> None:
    """pyiceberg, which writes, and DuckDB."""
    provider.configure("first")
    options = {"credential": f"{CLIENT}:{SECRET}", "oauth2-server-uri": provider.token_endpoint}
    with capture_logs() as logged:
        client = RestCatalog("lake", uri=server.uri, warehouse="lake", **options)
        client.load_table("s.t").append(rows(3))
        assert client.list_tables("s") == [("s", "t")]
        with pytest.raises(NoSuchTableError):
            client.load_table("s.hidden")
    audit = [(line["event"], line["name"]) for line in logged if line.get("client") == CLIENT]
    assert {("loaded", "s.t"), ("committed", "s.t"), ("refused", "")} <= set(audit)
    with closing(open_duckdb("httpfs")) as duckdb:
        duckdb.execute(
            f"CREATE SECRET (TYPE iceberg, CLIENT_ID '{CLIENT}', CLIENT_SECRET '{SECRET}',"
            f" OAUTH2_SERVER_URI '{provider.token_endpoint}', OAUTH2_SCOPE 'catalog')"
        )
        duckdb.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{server.uri}', ACCESS_DELEGATION_MODE 'none')")
        assert duckdb.execute("SELECT id FROM lake.s.t ORDER BY id").fetchall() == [(1,), (2,), (3,)]


def test_its_keys_change_and_its_other_tokens_are_refused(provider: OidcIssuer) -> None:
    provider.configure("first")
    check = TokenCheck(TokenIssuer(url=provider.url, audience=AUDIENCE), asked_again=0.0)
    first = provider.token()
    assert check.client(first).name == CLIENT
    with pytest.raises(TokenRefused, match="udience"):
        check.client(provider.token("mail"))
    # For some time both keys are published, and then the new one.
    provider.configure("second", "first")
    assert [check.client(token).name for token in (provider.token(), first)] == [CLIENT, CLIENT]
    provider.configure("third")
    assert check.client(provider.token()).name == CLIENT
    with pytest.raises(TokenRefused, match="no such key"):
        check.client(first)
    provider.configure("third", clock=-3600)
    with pytest.raises(TokenRefused, match="expired"):
        check.client(provider.token())


@pytest.mark.further
def test_spark_gets_its_tokens_itself(spark: SparkSession, provider: OidcIssuer, server: ServedMirror) -> None:
    provider.configure("first")
    options = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": server.uri,
        ".warehouse": "lake",
        ".credential": f"{CLIENT}:{SECRET}",
        ".oauth2-server-uri": provider.token_endpoint,
        ".scope": "catalog",
    }
    for name, value in options.items():
        spark.conf.set(f"spark.sql.catalog.oidc{name}", value)
    spark.sql("INSERT INTO oidc.s.t VALUES (4, 'four')")
    assert [row[0] for row in spark.sql("SELECT id FROM oidc.s.t ORDER BY id").collect()] == [1, 2, 4]
    assert [row.tableName for row in spark.sql("SHOW TABLES IN oidc.s").collect()] == ["t"]
