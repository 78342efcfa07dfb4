"""One libpq connection string, in the form that each client without libpq needs."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from mirror_pump.engine.spark_runtime.session import SparkSettings, _base_conf, jdbc_catalog, libpq_access
from mirror_pump.errors import UsageError


@pytest.fixture(autouse=True)
def _no_libpq_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGHOSTADDR", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("postgresql://u:p@db.example:6000/d", "jdbc:postgresql://db.example:6000/d"),
        ("host=db.example user=u dbname=d", "jdbc:postgresql://db.example:5432/d"),
        ("postgresql://u@[::1]/d", "jdbc:postgresql://[::1]:5432/d"),
        ("host=name hostaddr=10.0.0.7 user=u dbname=d", "jdbc:postgresql://10.0.0.7:5432/d"),
        ("postgresql://u@a:1,b:2/d", "jdbc:postgresql://a:1,b:2/d"),
        ("host=a,b port=6000 user=u dbname=d", "jdbc:postgresql://a:6000,b:6000/d"),
        ("postgresql://u@h/d%2Fe%3F", "jdbc:postgresql://h:5432/d%2Fe%3F"),
        ("user=u", "jdbc:postgresql://localhost:5432/u"),
    ],
)
def test_jdbc_url(dsn: str, url: str) -> None:
    assert (
        libpq_access(dsn).jdbc_url() == url + "?currentSchema=pg_catalog%2Cmodak%2Cpg_temp&ApplicationName=mirror-pump"
    )


def test_tls_parameters_are_kept_and_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", "from_environment")
    monkeypatch.setenv("PGPASSWORD", "secret")
    access = libpq_access("postgresql://h/d?sslmode=verify-full&sslrootcert=/ca.pem&options=-csearch_path%3Dx")
    assert (access.user, access.password) == ("from_environment", "secret")
    assert parse_qs(urlsplit(access.jdbc_url()).query) == {
        "currentSchema": ["pg_catalog,modak,pg_temp"],
        "ApplicationName": ["mirror-pump"],
        "sslmode": ["verify-full"],
        "sslrootcert": ["/ca.pem"],
    }
    assert "secret" not in access.jdbc_url()
    assert "secret" not in repr(access)


@pytest.mark.parametrize("dsn", ["host=/var/run/postgresql dbname=d", "postgresql:///d?host=/tmp", "service=mine"])
def test_what_only_libpq_can_do_is_refused(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UsageError) as caught:
        libpq_access(dsn)
    assert "host" in caught.value.remedy


def test_what_is_no_connection_string_is_refused() -> None:
    with pytest.raises(UsageError, match="the connection string cannot be read"):
        libpq_access("host=a nonsense")


_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(user=_TEXT, password=_TEXT, database=_TEXT)
def test_names_and_passwords_survive_every_form(user: str, password: str, database: str) -> None:
    from sqlalchemy import make_url

    access = libpq_access(make_conninfo(host="h", user=user, password=password, dbname=database))
    assert (access.user, access.password, access.database) == (user, password, database)
    url = make_url(access.sqlalchemy_url())
    assert (url.username, url.password, url.database) == (user, password, database)
    assert url.query["options"] == "-csearch_path=pg_catalog,modak,pg_temp"
    path = access.jdbc_url().removeprefix("jdbc:postgresql://h:5432/").partition("?")[0]
    assert unquote(path) == database
    conf = jdbc_catalog("lake", make_conninfo(host="h", user=user, password=password, dbname=database), "file:///w")
    assert conf["spark.sql.catalog.lake.jdbc.user"] == user
    assert conf["spark.sql.catalog.lake.jdbc.password"] == password


def test_only_a_driver_without_executors_and_data_is_seldom_heard() -> None:
    heartbeat = "spark.executor.heartbeatInterval"
    assert heartbeat in _base_conf(SparkSettings("local[4]", jars=False))
    assert heartbeat not in _base_conf(SparkSettings("local[4]"))
    assert heartbeat not in _base_conf(SparkSettings("spark://host:7077", jars=False))
