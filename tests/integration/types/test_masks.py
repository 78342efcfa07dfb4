"""`register --mask`: no value of a masked column is in any byte of the lake or in a message, whatever way it takes.

The oracle is Python's hashlib over what PostgreSQL prints.
"""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mirror_pump.errors import MirrorPumpError, SourceError, TableError, UsageError
from mirror_pump.ops.register.preview import preview
from mirror_pump.ops.register.table_wish import TableOptions
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.cli import RunCommand
from tests.support.documented import documented_mirror
from tests.support.table_wishes import parse_choices

MARKER = "Unmasked"
"""In every value of a masked column, beyond the first eight characters. Masks of digests cannot have it."""


def sha256(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def lake_bytes(warehouse: str) -> Iterator[tuple[Path, bytes]]:
    """All files of the warehouse: as they are, and what Parquet and Avro compress."""
    for path in Path(warehouse.removeprefix("file://")).rglob("*"):
        if not path.is_file():
            continue
        yield path, path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield path, repr(table.to_pydict()).encode()
            yield path, repr(pq.read_metadata(path).to_dict()).encode()
        if path.suffix == ".avro":
            yield path, repr(_avro(path)).encode()


def _avro(path: Path) -> list[Any]:
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.io.pyarrow import PyArrowFileIO

    with AvroFile[Any](PyArrowFileIO().new_input(str(path))) as records:
        return [record.__dict__ if hasattr(record, "__dict__") else record for record in records]


def assert_hidden(mirror: Mirror, warehouse: str, steps: Steps | None = None) -> None:
    """No marker in the lake, in the catalog, or in what the pump reports."""
    files = 0
    for path, content in lake_bytes(warehouse):
        assert MARKER.encode() not in content, path
        files += 1
    assert files
    # mirror_shapes repeats the definition of the table, and with it constant defaults, as pg_attribute does.
    for (table,) in mirror.database.rows(
        "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'modak' AND tablename <> 'mirror_shapes'"
    ):
        assert mirror.database.rows(f"SELECT 1 FROM modak.{table} t WHERE t::text LIKE '%{MARKER}%'") == [], table
    if steps is not None:
        assert MARKER not in repr(steps.__dict__)


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text, phone varchar(80), note text, number bigint, tags text[],"
        " code char(30), plain text, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL",
    )
    return Mirror.create(database, warehouse, ThreadTaskRunner())


MASKS = ["email=sha256", "phone=prefix(3)", "note=null", "number=sha256", "tags=sha256", "code=sha256", "big=sha256"]


def value(chance: random.Random, size: int = 0) -> str | None:
    if chance.random() < 0.1:
        return None
    return f"{chance.randrange(30):08}{MARKER}{'é' * size}"


def row(chance: random.Random) -> tuple[object, ...]:
    large = chance.choice([0, 3000])
    text = value(chance)
    return (
        value(chance),
        text,
        value(chance, large),
        chance.choice([None, chance.randrange(5)]),
        [text, None],
        value(chance),
        "as it is",
        value(chance, large),
    )


def write(database: Database, chance: random.Random, count: int) -> None:
    """Inserts, updates of all columns or of a small one (large values are then looked up), new keys, deletes."""
    with database.connect(autocommit=False) as connection:
        for _ in range(count):
            key = chance.randrange(60)
            kind = chance.random()
            if kind < 0.45:
                connection.execute(
                    "INSERT INTO t (id, email, phone, note, number, tags, code, plain, big)"
                    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET"
                    " (email, phone, note, number, tags, code, plain, big) = (excluded.email, excluded.phone,"
                    " excluded.note, excluded.number, excluded.tags, excluded.code, excluded.plain, excluded.big)",
                    (key, *row(chance)),
                )
            elif kind < 0.75:
                connection.execute("UPDATE t SET plain = %s WHERE id = %s", (str(kind), key))
            elif kind < 0.85:
                connection.execute(
                    "UPDATE t SET id = id + 1000 WHERE id = %s AND id NOT IN (SELECT id - 1000 FROM t)", (key,)
                )
            else:
                connection.execute("DELETE FROM t WHERE id IN (%s, 1000 + %s)", (key, key))


def assert_masked(mirror: Mirror) -> None:
    """The lake is the heap with the masks, computed from what PostgreSQL prints."""
    heap = {
        found[0]: found
        for found in mirror.database.rows(
            "SELECT id, email, phone, note, number::text, tags::text, format('%s', code), plain, big, code IS NULL"
            " FROM t"
        )
    }
    lake = {found["id"]: found for found in read_duckdb(mirror.location("public.t")).to_pylist()}
    assert heap.keys() == lake.keys()
    for key, (_, email, phone, _note, number, tags, code, plain, big, no_code) in heap.items():
        found = lake[key]
        assert found["email"] == sha256(email)
        assert found["phone"] == (None if phone is None else phone[:3])
        assert found["note"] is None
        assert (found["number"], found["tags"]) == (sha256(number), sha256(tags))
        assert found["code"] == (None if no_code else sha256(code))
        assert (found["plain"], found["big"]) == (plain, sha256(big))


def test_copy_stream_large_values_and_verify_hold_masks(mirror: Mirror, warehouse: str) -> None:
    database, chance, steps = mirror.database, random.Random(7), Steps()
    write(database, chance, 150)
    with mirror.pumping(steps):
        mirror.register("t", choices=parse_choices([], [], MASKS))
        for _ in range(8):
            write(database, chance, 40)
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert_masked(mirror)
    for _ in range(4):
        write(database, chance, 40)
        with mirror.pumping(steps):
            write(database, chance, 40)
            mirror.await_frontier()
    assert_masked(mirror)
    assert assert_verified(database) == 1
    assert_hidden(mirror, warehouse, steps)


def test_verify_finds_a_wrong_mask(mirror: Mirror) -> None:
    database = mirror.database
    database.execute(f"INSERT INTO t (id, email) VALUES (1, '00000000{MARKER}')")
    with mirror.pumping():
        mirror.register("t", choices=parse_choices([], [], ["email=sha256"]))
        mirror.await_live("public.t")
    database.execute(
        "UPDATE modak.mirror_tables SET columns = replace(columns::text, 'as sha256', 'as prefix(3)')::jsonb"
    )
    with pytest.raises(AssertionError):
        assert_verified(database)
    database.execute(
        "UPDATE modak.mirror_tables SET columns = replace(columns::text, 'as prefix(3)', 'as sha256')::jsonb"
    )
    assert assert_verified(database) == 1


def test_ddl_keeps_masks_and_leaves_out_what_is_new(mirror: Mirror, warehouse: str) -> None:
    database, steps = mirror.database, Steps()
    hidden = f"00000000{MARKER}"
    database.execute(f"INSERT INTO t (id, email, number) VALUES (1, '{hidden}', 5)")
    with mirror.pumping(steps):
        mirror.register("t", choices=parse_choices([], [], MASKS))
        mirror.await_live("public.t")
        database.execute(
            "ALTER TABLE t RENAME COLUMN email TO mail",
            f"ALTER TABLE t ADD COLUMN email text DEFAULT '{hidden}', ADD COLUMN later text",
            f"UPDATE t SET later = '{hidden}', mail = mail || 'x' WHERE id = 1",
            "ALTER TABLE t ALTER mail TYPE varchar(200)",
            "ALTER TABLE t ALTER number TYPE numeric USING number + 0.5",
            f"INSERT INTO t (id, mail, later) VALUES (2, '{hidden}', '{hidden}')",
        )
        mirror.await_frontier()
        mirror.await_live("public.t")
        lake = {found["id"]: found for found in read_duckdb(mirror.location("public.t")).to_pylist()}
        assert not {"email", "later"} & lake[1].keys()
        assert lake[1]["mail"] == sha256(hidden + "x")
        assert (lake[1]["number"], lake[2]["number"]) == (sha256("5.5"), None)
        assert lake[2]["mail"] == sha256(hidden)
        # Without any masked column left, the table still does not take what is new.
        database.execute(
            "ALTER TABLE t DROP COLUMN mail, DROP COLUMN phone, DROP COLUMN note, DROP COLUMN number, DROP COLUMN tags,"
            " DROP COLUMN code, DROP COLUMN big",
            f"ALTER TABLE t ADD COLUMN mail text DEFAULT '{hidden}'",
            f"INSERT INTO t (id, mail, plain) VALUES (3, '{hidden}', 'seen')",
        )
        mirror.await_frontier()
        mirror.await_live("public.t")
        assert_rows(mirror, {1: None, 2: None, 3: "seen"})
    assert assert_verified(database) == 1
    assert_hidden(mirror, warehouse, steps)
    with StatusReader(mirror.settings) as reader:
        (status,) = reader.read().tables
    assert (status.excluded, status.masked) == (("email", "later", "mail"), ())


def assert_rows(mirror: Mirror, rows: dict[int, str | None]) -> None:
    lake = read_duckdb(mirror.location("public.t")).to_pylist()
    assert all(found.keys() == {"id", "plain"} for found in lake)
    assert {found["id"]: found["plain"] for found in lake} == rows


def refused(mirror: Mirror, masks: list[str], **options: Any) -> MirrorPumpError:
    choices = parse_choices([], [], masks)
    with pytest.raises(TableError) as error:
        mirror.register("t", choices=choices, **options)
    assert error.value.remedy
    (shown,) = preview(mirror.settings, ["t"], TableOptions(choices, options.get("retention")))
    assert str(shown.error) == str(error.value)
    assert mirror.state("public.t") == ""
    return error.value


def test_what_masks_are_refused_for(mirror: Mirror) -> None:
    assert "part of its key" in str(refused(mirror, ["id=sha256"]))
    assert "not a column" in str(refused(mirror, ["nothing=sha256"]))
    assert "rows leave the heap" in str(refused(mirror, ["email=sha256"], retention=RetentionOptions(lag="10")))


@pytest.mark.parametrize(
    ("columns", "excluded", "masks", "message"),
    [
        ([], [], ["email"], "no mask"),
        ([], [], ["email=md5"], "not a mask"),
        ([], [], ["email=hmac(the key itself)"], "not a mask"),
        ([], [], ["email=hmac(env:MIRROR_PUMP_NO_SUCH_KEY)"], "is not set"),
        ([], [], ["email=sha256", "email=null"], "twice"),
        (["email=string"], [], ["email=null"], "twice"),
        ([], ["email"], ["email=null"], "both be excluded"),
    ],
)
def test_options_that_are_none(columns: list[str], excluded: list[str], masks: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        parse_choices(columns, excluded, masks)
    assert "the key itself" not in str(refusal.value)


def test_reads_ingests_and_loads_have_masks(
    database: Database, warehouse: str, run: RunCommand, slot: str, tmp_path: Path
) -> None:
    mirror = documented_mirror(database, warehouse, slot)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, email text)", f"INSERT INTO t VALUES (1, '00000000{MARKER}')")
    with mirror.pumping():
        registered = run("register", "t", "--mask", "email=sha256", "--where", "id > 0")
        assert registered.exit_code == 1
        assert "REPLICA IDENTITY FULL" in registered.stderr
        registered = run("register", "t", "--mask", "email=sha256")
        assert registered.exit_code == 0, registered.stderr
        for mode in ("lake", "heap", "hybrid"):
            read = run("sql", "SELECT * FROM t", "--mode", mode)
            assert MARKER not in read.stdout + read.stderr
            assert str(sha256(f"00000000{MARKER}")) in read.stdout
        reader = run("reader", "pg_monitor", "t", "--print")
        assert reader.exit_code == 2
        assert "has masks" in reader.stderr
        source, other = tmp_path / "rows.csv", tmp_path / "others.csv"
        source.write_text("id,email\n2,a\n")
        other.write_text("id,email\n3,b\n")
        for command in (("ingest", "t", str(source)), ("load", "t", str(other), "--label", "first")):
            written = run(*command)
            assert written.exit_code == 0, written.stderr
        mirror.await_frontier()
        masks = [(1, sha256(f"00000000{MARKER}")), (2, sha256("a")), (3, sha256("b"))]
        assert mirror.lake("public.t") == masks
        assert database.rows("SELECT email FROM t WHERE id > 1 ORDER BY id") == [("a",), ("b",)]


def test_other_masks_take_a_new_registration(mirror: Mirror) -> None:
    with mirror.pumping():
        mirror.register("t", choices=parse_choices([], [], ["email=sha256"]))
        mirror.await_live("public.t")
        mirror.register("t", choices=parse_choices([], [], ["email=sha256"]))
        with pytest.raises(TableError, match=r"registered with --mask email=sha256") as refusal:
            mirror.register("t", choices=parse_choices([], [], ["email=null"]))
        assert "copied again" in refusal.value.remedy


def test_a_pump_without_the_key_does_not_start(mirror: Mirror, tmp_path: Path) -> None:
    database, key = mirror.database, tmp_path / "key"
    key.write_text("a key of sixteen bytes or more")
    database.execute(f"INSERT INTO t (id, email) VALUES (1, '00000000{MARKER}')")
    with mirror.pumping():
        mirror.register("t", choices=parse_choices([], [], [f"email=hmac(file:{key})"]))
        mirror.await_live("public.t")
    # As for a process that never read it: this one remembers the key by its reference.
    database.execute(f"UPDATE modak.mirror_tables SET columns = replace(columns::text, '{key}', '{key}-gone')::jsonb")
    with pytest.raises(SourceError, match="the key of a mask is missing"):
        mirror.catch_up()
    other = tmp_path / "key-gone"
    other.write_text("another key of sixteen bytes or more")
    with pytest.raises(SourceError, match="not the one that the table was registered with"):
        mirror.catch_up()
    database.execute(f"UPDATE modak.mirror_tables SET columns = replace(columns::text, '{key}-gone', '{key}')::jsonb")
    assert assert_verified(database) == 1


def test_the_commands_of_the_document(
    database: Database, warehouse: str, run: RunCommand, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented_mirror(database, warehouse, slot)
    monkeypatch.setenv("MASK_KEY", "a key of sixteen bytes or more")
    database.execute("CREATE TABLE customers (id int PRIMARY KEY, region text, email text, phone text, notes text)")
    document = (Path(__file__).parents[3] / "docs" / "masks.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in document.splitlines() if line.startswith("    mirror-pump register")]
    assert len(commands) == 3
    for command in commands:
        identity = "FULL" if "--where" in command else "DEFAULT"
        database.execute(f"ALTER TABLE customers REPLICA IDENTITY {identity}")
        shown = run(*shlex.split(command)[1:], "--dry-run")
        assert shown.exit_code == 0, shown.stderr
        assert "email string masked as " in shown.stdout, "what tells keys apart is not shown"


def test_digests_are_what_the_document_says(database: Database) -> None:
    ((digest,),) = database.rows("SELECT encode(sha256(convert_to('ä@example.org', 'UTF8')), 'hex')")
    assert digest == sha256("ä@example.org")
