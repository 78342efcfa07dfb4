"""Receipts that a stranger wrote or changed, raw text columns in them, and receipts of the former method."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mirror_pump.ops.duckdb_connection import confine, open_duckdb
from mirror_pump.ops.moments.digests import first_text
from mirror_pump.ops.moments.moment_reader import MomentReader
from mirror_pump.ops.moments.receipts import receipt_of
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.local_files import path_of
from tests.support.moments import kept_moment
from tests.support.s3_server import s3_server

_KEY = b"0123456789abcdef"
ReceiptChange = Callable[[dict[str, Any]], None]


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A table with a raw text column, and one with two columns that are called like one."""
    database.execute(
        "CREATE TABLE days (id bigint PRIMARY KEY, since date, amount numeric(6,2))",
        "INSERT INTO days VALUES (1, '2026-05-04', 'NaN'), (2, 'infinity', 1.5), (3, NULL, NULL)",
        "CREATE TABLE notes (id int PRIMARY KEY, note text, note__raw text)",
        "INSERT INTO notes VALUES (1, 'a', NULL), (2, 'b', 'c'), (3, NULL, 'd')",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("days", "notes")
    mirror.catch_up()
    return mirror


@pytest.fixture
def receipt(mirror: Mirror, run: RunCommand, tmp_path: Path) -> Path:
    """A signed receipt of the moment `closing`."""
    (tmp_path / "key").write_bytes(_KEY)
    path = tmp_path / "receipt.json"
    options = ("--slot", mirror.settings.slot, "--receipt", str(path), "--key", str(tmp_path / "key"))
    assert run("moment", "keep", "closing", *options).exit_code == 0
    return path


@pytest.fixture
def check(mirror: Mirror, run: RunCommand, receipt: Path) -> Callable[..., tuple[int, str]]:
    """Checks the moment with the receipt as a change has left it: exit code, and all that was said."""
    content = receipt.read_bytes()

    def checked(
        change: ReceiptChange = lambda _: None, *, key: bool = False, raw: bytes | None = None
    ) -> tuple[int, str]:
        document = json.loads(content)
        change(document)
        receipt.write_bytes(json.dumps(document).encode() if raw is None else raw)
        options = ("--key", str(receipt.parent / "key")) if key else ()
        result = run("moment", "check", "closing", "--slot", mirror.settings.slot, "--receipt", str(receipt), *options)
        assert "Traceback" not in result.output
        assert "report" not in result.output
        return result.exit_code, result.output

    return checked


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    (table,) = [table for table in document["tables"] if table["table"] == name]
    return cast("dict[str, Any]", table)


def test_both_values_are_in_a_digest_and_the_heap_is_compared(check: Callable[..., tuple[int, str]]) -> None:
    """Also of a table whose columns are only called like a raw text column."""
    code, said = check(key=True)
    assert code == 0, said
    assert said.count("receipt equal, heap equal") == 2


def test_no_text_of_a_receipt_is_run(check: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """A type that ends the CAST and goes on, a name, a key and a bound that end their quotes, a path."""
    secret, taken = tmp_path / "secret.csv", tmp_path / "taken.csv"
    secret.write_text("a\n1\n")
    copy = f"COPY (SELECT * FROM '{secret}') TO '{taken}'"
    texts = [
        f"BIGINT) AS VARCHAR)) AS h FROM (SELECT 1)) GROUP BY p; {copy}; SELECT (0",
        f"BIGINT); {copy}; --",
        f'id"; {copy}; --',
        f"1'; {copy}; --",
    ]
    for text in texts:
        for change in (_type_of(text), _name_of(text), _key_of(text), _bound_of(text)):
            code, said = check(change)
            assert code == 1, said
            assert "receipt different" in said or "was changed" in said
            assert not taken.exists()
    for text in ("x", "9" * 40, "", "\u0661\n"):
        code, said = check(_bound_of(text))
        assert (code, "receipt different" in said, "no value of the key" in said) == (1, True, True), said
    for raw in (b"", b"{}", b"[" * 100_000, b'{"tables": ' * 50_000, b"\xff", b'{"receipt": NaN}', b'{"a": 1, "a": 2}'):
        code, said = check(raw=raw)
        assert (code, "is no receipt" in said) == (1, True), said


def _type_of(text: str) -> ReceiptChange:
    return lambda document: _table(document, "public.days")["columns"][0].update(type=text)


def _name_of(text: str) -> ReceiptChange:
    return lambda document: _table(document, "public.days")["columns"][0].update(name=text, raw=text)


def _key_of(text: str) -> ReceiptChange:
    return lambda document: _table(document, "public.days").update(key=text)


def _bound_of(text: str) -> ReceiptChange:
    def change(document: dict[str, Any]) -> None:
        _table(document, "public.days")["ranges"].append({"from": text, "rows": 0, "digest": "0" * 64})

    return change


def test_a_duckdb_for_receipts_opens_only_what_it_is_given(tmp_path: Path) -> None:
    import duckdb

    given, other = tmp_path / "given", tmp_path / "other.csv"
    given.mkdir()
    (given / "rows.csv").write_text("a\n1\n")
    other.write_text("a\n2\n")
    with open_duckdb() as connection:
        confine(connection, [str(given)])
        assert connection.execute(f"FROM '{given}/rows.csv'").fetchall() == [(1,)]
        for statement in (
            f"FROM '{other}'",
            f"FROM '{given}/../other.csv'",
            f"COPY (SELECT 1) TO '{tmp_path}/taken.csv'",
            f"ATTACH '{tmp_path}/taken.db'",
            "LOAD httpfs",
            "SET enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given", "other.csv"]


@pytest.mark.unverified("a file of the lake is forged")
def test_a_value_beside_a_raw_text_is_found(
    mirror: Mirror, check: Callable[..., tuple[int, str]], receipt: Path
) -> None:
    """A forger gives the row with `infinity` a date that readers of the column see."""
    (table,) = [table for table in kept_moment(mirror, "closing").tables if table.table.name == "days"]
    (data,) = path_of(table.main_location).parents[1].glob("data/**/*.parquet")
    rows = pq.ParquetFile(data).read()
    place = rows.schema.get_field_index("since")
    forged = pc.if_else(pc.equal(rows["id"], 2), pc.cast("1999-09-09", rows.schema.types[place]), rows["since"])
    pq.write_table(rows.set_column(place, rows.schema.field(place), forged), data)
    for key in (False, True):
        code, said = check(key=key)
        assert code == 1, said
        assert "public.days: 3 rows, receipt different, heap different" in said


def test_a_former_receipt_is_checked_and_says_what_it_covers(
    mirror: Mirror, check: Callable[..., tuple[int, str]]
) -> None:
    """Its method took each column `x__raw` for the raw text column of `x`."""
    moment = kept_moment(mirror, "closing")
    with MomentReader.open(mirror.settings, moment) as reader:
        digests = []
        for table in moment.tables:
            rows = reader.rows(table, by_names=True)
            digests.append((table, reader.digest(table, rows, (), first_text)))
    former = receipt_of(moment, digests, None) | {"method": "sha256-sum-4x64"}
    code, said = check(raw=json.dumps(former).encode())
    assert code == 0, said
    assert said.count("receipt equal, heap equal") == 2
    assert "covers one value of each row of note and note__raw" in said
    assert "since and since__raw" in said
    former["tables"][0]["ranges"][0]["digest"] = former["tables"][0]["digest"] = "1" * 64
    assert check(raw=json.dumps(former).encode())[0] == 1


def test_a_malformed_signature_is_wrong(check: Callable[..., tuple[int, str]]) -> None:
    signatures = ["x", 1, [], {}, {"value": 1}, {"algorithm": "HMAC-SHA256", "value": "ä"}]
    for signature in [*signatures, {"algorithm": "HMAC-SHA256", "value": "\ud800"}, {"algorithm": [], "value": "a"}]:
        code, said = check(lambda document, value=signature: document.update(signature=value), key=True)
        assert (code, "is wrong: it was changed" in said) == (1, True), said
    for unsigned in (lambda document: document.update(signature=None), lambda document: document.pop("signature")):
        code, said = check(unsigned, key=True)
        assert (code, "is not signed" in said) == (1, True), said


def test_a_receipt_that_was_changed_is_said_to_be(check: Callable[..., tuple[int, str]]) -> None:
    def more_rows(document: dict[str, Any]) -> None:
        _table(document, "public.days").update(rows=4)

    def twice(document: dict[str, Any]) -> None:
        document["tables"].append(document["tables"][0])

    def forged(document: dict[str, Any]) -> None:
        _table(document, "public.days")["columns"][1].update(raw=None)

    for change in (more_rows, twice, forged):
        assert "the signature of" in check(change, key=True)[1]
        code, said = check(change)
        assert code == 1
        assert "was changed" in said or "receipt different" in said


def test_a_key_that_is_too_short_is_not_overwritten_by_the_remedy(
    mirror: Mirror, run: RunCommand, receipt: Path
) -> None:
    key = receipt.parent / "key"
    key.write_text("short")
    slot = ("--slot", mirror.settings.slot)
    checked = run("moment", "check", "closing", *slot, "--receipt", str(receipt), "--key", str(key))
    assert checked.exit_code == 2
    assert "has 5 bytes" in checked.stderr
    assert "name the file of the key that the receipt was signed with" in checked.stderr
    kept = run("moment", "keep", "other", *slot, "--receipt", str(receipt.parent / "new"), "--key", str(key))
    assert kept.exit_code == 2
    for said in (checked.stderr, kept.stderr):
        assert f"> {key}" not in said
    endless = run("moment", "check", "closing", *slot, "--receipt", str(receipt), "--key", "/dev/zero")
    assert (endless.exit_code, "more than" in endless.stderr) == (2, True)


@pytest.mark.further
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_a_receipt_of_a_lake_in_s3(
    database: Database, tasks: ThreadTaskRunner, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as s3:
        mirror = Mirror.create(database, "s3://lake/shop", tasks, **s3.storage_settings)
        database.execute(
            "CREATE TABLE public.orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a')"
        )
        mirror.register("public.orders")
        mirror.catch_up()
        for name, value in s3.storage_settings.items():
            monkeypatch.setenv(f"MIRROR_PUMP_{name.upper()}", str(value))
        options = ("--slot", mirror.settings.slot, "--receipt", str(tmp_path / "receipt.json"))
        for command in ("keep", "check"):
            result = run("moment", command, "closing", *options)
            assert result.exit_code == 0, result.output
    assert "public.orders: 1 rows, receipt equal, heap equal" in result.stdout
