"""The grammar of catalogs' names, which `lake` and `serve` share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pump.cli.arguments.catalogs import open_catalog
from mirror_pump.errors import UsageError
from mirror_pump.rest_catalog.service import NamedCatalog
from mirror_pump.settings.config import Settings
from mirror_pump.tables.catalogs.catalog_uris import BadCatalogUri, CatalogKind, CatalogUri
from mirror_pump.tables.catalogs.lake_catalog import RowCatalog, TableIdentifier
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog

PATH, SQLITE, POSTGRES, MEMORY = CatalogKind

FORMS = {
    # /here is the working directory.
    "path:/srv/lake": CatalogUri(PATH, "file:///srv/lake"),
    "path:/srv/lake/": CatalogUri(PATH, "file:///srv/lake"),
    "path:/srv/a b ü%20+": CatalogUri(PATH, "file:///srv/a b ü%20+"),
    "path:/srv/a=b": CatalogUri(PATH, "file:///srv/a=b"),
    "path:lake": CatalogUri(PATH, "file:///here/lake"),
    "path:file:///srv/lake": CatalogUri(PATH, "file:///srv/lake"),
    "path:file:///srv/other/../lake": CatalogUri(PATH, "file:///srv/lake"),
    "path:/srv/other/../lake": CatalogUri(PATH, "file:///srv/lake"),
    "path:s3://bucket/lake/": CatalogUri(PATH, "s3://bucket/lake"),
    "/srv/lake": CatalogUri(PATH, "file:///srv/lake"),
    "./lake": CatalogUri(PATH, "file:///here/lake"),
    "/srv/a:b": CatalogUri(PATH, "file:///srv/a:b"),
    "~/lake": CatalogUri(PATH, "file:///home/me/lake"),
    "file:///srv/lake": CatalogUri(PATH, "file:///srv/lake"),
    "s3://bucket/lake": CatalogUri(PATH, "s3://bucket/lake"),
    "s3://bucket": CatalogUri(PATH, "s3://bucket"),
    "sqlite:/srv/lake.db": CatalogUri(SQLITE, "/srv/lake.db"),
    "sqlite:///srv/lake.db": CatalogUri(SQLITE, "/srv/lake.db"),
    "sqlite:////srv/lake.db": CatalogUri(SQLITE, "/srv/lake.db"),
    "sqlite:lake.db": CatalogUri(SQLITE, "/here/lake.db"),
    "sqlite:~/lake.db": CatalogUri(SQLITE, "/home/me/lake.db"),
    "sqlite:/srv/a%3Fb.db": CatalogUri(SQLITE, "/srv/a?b.db"),
    "sqlite:/srv/lake.db?name=own&warehouse=s3://bucket/x": CatalogUri(SQLITE, "/srv/lake.db", "own", "s3://bucket/x"),
    "sqlite:/srv/lake.db?warehouse=/srv/a+b%26": CatalogUri(SQLITE, "/srv/lake.db", "lake", "file:///srv/a+b&"),
    "postgres": CatalogUri(POSTGRES, ""),
    "postgres:": CatalogUri(POSTGRES, ""),
    "postgres:?name=own": CatalogUri(POSTGRES, "", "own"),
    "postgres:?warehouse=/srv/own&name=own": CatalogUri(POSTGRES, "", "own", "file:///srv/own"),
    "postgresql://me@host:5433/db": CatalogUri(POSTGRES, "postgresql://me@host:5433/db"),
    "postgres://me@host/db": CatalogUri(POSTGRES, "postgres://me@host/db"),
    "postgresql:///db?host=/run&name=own&sslmode=require": CatalogUri(
        POSTGRES, "postgresql:///db?host=/run&sslmode=require", "own"
    ),
    "memory:/srv/scratch": CatalogUri(MEMORY, "file:///srv/scratch"),
}

BAD = (
    "",
    "lake",
    "sqlite",
    "path",
    "path:",
    "memory:",
    "sqlite:",
    "sqlite://",
    "sqlite:///",
    "sqlite://host/file",
    "sqlite:?name=x",
    "hive:x",
    "hive:/srv/x",
    "ftp://host/lake",
    "s3://",
    "path:file://host/x",
    "path:ftp://host/x",
    "path:/srv/x?name=y",
    "/srv/x?name=y",
    "memory:/srv/x?name=y",
    "postgres:x",
    "postgres:?name",
    "postgres:?name=",
    "postgres:?names=x",
    "postgres:?name=x&name=y",
    "postgresql://host/db?name=x&name=y",
    "sqlite:/srv/x.db?warehouse=ftp://host/x",
    "sqlite:/srv/x.db?other=1",
    "c:\\lake",
)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", FORMS)
def test_a_text_names_a_catalog(text: str, tmp_path: Path) -> None:
    expected = replace(FORMS[text], place=FORMS[text].place.replace("/here", str(tmp_path)))
    assert CatalogUri.parse(text) == expected
    assert NamedCatalog.parse(text) == NamedCatalog("lake", expected)
    assert NamedCatalog.parse(f"shop={text}") == NamedCatalog("shop", expected)


@pytest.mark.parametrize("text", BAD)
def test_other_texts_name_none(text: str) -> None:
    for parse in (CatalogUri.parse, NamedCatalog.parse):
        with pytest.raises(BadCatalogUri, match="is no catalog") as caught:
            parse(text)
        assert "path:DIR" in caught.value.remedy
    with pytest.raises(BadCatalogUri):
        open_catalog(text, Settings())


def test_no_password_is_repeated() -> None:
    with pytest.raises(BadCatalogUri) as caught:
        CatalogUri.parse("postgresql://me:hunter22@host/db?name=x&name=y")
    assert "hunter22" not in str(caught.value)


def test_the_mirrors_name_is_taken() -> None:
    with pytest.raises(UsageError, match="is the mirror's"):
        NamedCatalog.parse("mirror=path:/srv/lake")


def _stored(settings: Settings) -> Settings:
    """As a database has it that was set up."""
    return settings.model_copy(update={"warehouse": f"s3://{(settings.dsn or '').rpartition('/')[2]}/lake"})


ORDERS = TableIdentifier("shop", "orders")


def test_what_is_not_there_is_an_error_unless_it_is_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "lake").mkdir()
    for text in (f"path:{tmp_path}/none", f"sqlite:{tmp_path}/none.db", f"memory:{tmp_path}/none"):
        with pytest.raises(BadCatalogUri, match=r"there is no (file|directory) .*/none"):
            CatalogUri.parse(text).open(Settings(), _stored, create=False)
        CatalogUri.parse(text).open(Settings(), _stored, create=True).close()
        below = text.replace("none", "none.d/none")
        with pytest.raises(BadCatalogUri, match=r"there is no directory .*/none\.d"):
            CatalogUri.parse(below).open(Settings(), _stored, create=True)
    for text in (f"path:{tmp_path}/file", f"sqlite:{tmp_path}/lake"):
        with pytest.raises(BadCatalogUri, match=r"is no (file|directory)"):
            CatalogUri.parse(text).open(Settings(), _stored, create=True)
    assert sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name) == ["file", "lake", "none.db"]


def test_a_directory_has_the_location_that_it_has_everywhere(tmp_path: Path) -> None:
    """Iceberg's locations are not percent-encoded."""
    directory = tmp_path / "a b ü"
    directory.mkdir()
    opened = CatalogUri.parse(f"path:{directory}").open(Settings(), _stored, create=False)
    assert opened.table_location(ORDERS) == f"file://{directory}/shop/orders"


def test_new_tables_are_where_the_text_or_the_database_says(tmp_path: Path) -> None:
    mirror = Settings(dsn="postgresql://host/shop")
    for text, expected in (
        ("postgres", "s3://shop/lake"),
        ("postgresql://host/other", "s3://other/lake"),
        ("postgres:?warehouse=s3://own/x", "s3://own/x"),
        (f"sqlite:{tmp_path}/c.db", tmp_path.as_uri()),
        (f"sqlite:{tmp_path}/c.db?warehouse=s3://own/x", "s3://own/x"),
    ):
        opened = CatalogUri.parse(text).open(mirror, _stored, create=True)
        assert isinstance(opened, RowCatalog)
        assert opened.warehouse == expected
        opened.close()
    with pytest.raises(UsageError, match="no database was given"):
        CatalogUri.parse("postgres").open(Settings(), _stored, create=True)
    with pytest.raises(UsageError, match="no warehouse is known"):
        CatalogUri.parse("postgres").open(mirror, lambda settings: settings, create=True)


def test_what_is_the_pumps_or_ends_at_once_is_refused(tmp_path: Path) -> None:
    settings = Settings(dsn="postgresql://host/shop")
    for text in ("postgres", "postgresql://host/other", "postgres:?name=lake"):
        with pytest.raises(UsageError, match="the mirror's own catalog"):
            NamedCatalog.parse(text).open(settings, _stored, read_write=True)
        assert isinstance(NamedCatalog.parse(text).open(settings, _stored, read_write=False), PostgresCatalog)
    memory = f"memory:{tmp_path}"
    with pytest.raises(BadCatalogUri, match="before clients create"):
        NamedCatalog.parse(memory).open(settings, _stored, read_write=False)
    with pytest.raises(BadCatalogUri, match="would end with this command"):
        open_catalog(memory, settings)
    assert NamedCatalog.parse(memory).open(settings, _stored, read_write=True).namespaces() == []
