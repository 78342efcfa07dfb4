"""Damage to files: what disks, crashes, and people with a shell do to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from proofs.damage.damage import DAMAGES, Damage, damage
from proofs.damage.small_mirror import SmallMirror
from proofs.damage.table_files import path_of, replace_content


def cut_off(path: Path) -> None:
    content = path.read_bytes()
    replace_content(path, content[: len(content) * 2 // 3])


def empty(path: Path) -> None:
    replace_content(path, b"")


def remove(path: Path) -> None:
    path.unlink()


def zeroes(path: Path) -> None:
    replace_content(path, bytes(path.stat().st_size))


def flip(path: Path, at: int) -> None:
    """Flips the bits of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x5A
    replace_content(path, bytes(content))


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def flip_first(path: Path) -> None:
    flip(path, 0)


def flip_footer(path: Path) -> None:
    """In the middle of a Parquet file's footer."""
    content = path.read_bytes()
    flip(path, len(content) - 8 - int.from_bytes(content[-8:-4], "little") // 2)


def flip_page(path: Path) -> None:
    """In the first column's data page, behind its header."""
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size - 2)


def append(path: Path) -> None:
    replace_content(path, path.read_bytes() + b"\0" * 100)


WAYS: dict[str, Callable[[Path], None]] = {
    "removed": remove,
    "cut off": cut_off,
    "emptied": empty,
    "all zeroes": zeroes,
    "a byte in its middle flipped": flip_middle,
}
FILES: dict[str, Callable[[SmallMirror], Path]] = {
    "data file": lambda mirror: mirror.table("items").file(0),
    "data file below the cut-line": lambda mirror: mirror.archive.file(0),
    "data file of a tiered table": lambda mirror: mirror.table("ledger").file(0),
    "position-delete file": lambda mirror: mirror.table("orders").file(1),
    "deletion vectors": lambda mirror: mirror.table("items").file(1),
    "manifest": lambda mirror: mirror.table("items").manifests[0].path,
    "manifest list": lambda mirror: mirror.table("items").list_path,
    "metadata": lambda mirror: mirror.table("items").metadata_path,
    "published metadata": lambda mirror: mirror.archive.metadata_path,
    "data file of a feed": lambda mirror: mirror.feed.file(0),
    "manifest of a feed": lambda mirror: mirror.feed.manifests[0].path,
    "metadata of a feed": lambda mirror: mirror.feed.metadata_path,
    "data file of a moment": lambda mirror: mirror.moment.file(1),
    "metadata of a moment": lambda mirror: mirror.moment.metadata_path,
}


_ALL_WAYS = ("data file", "manifest", "metadata")
"""The others are damaged in the same ways by `tests/integration/lake/test_damage_matrix.py`."""


def _enter(thing: str, name: str, file: Callable[[SmallMirror], Path], way: Callable[[Path], None]) -> None:
    def apply(mirror: SmallMirror) -> None:
        way(file(mirror))

    # Here no program reads rows of moments.
    unknowable = "readers of the moment, and `moment check`" if thing == "data file of a moment" else ""
    DAMAGES.append(Damage(thing, name, apply, unknowable=unknowable))


for _thing, _file in FILES.items():
    for _name, _way in WAYS.items():
        if "metadata" in _thing and _way is flip_middle:
            # In its middle it may be a letter of a name that nothing needs.
            _enter(_thing, "its first byte flipped", _file, flip_first)
        elif _thing in _ALL_WAYS or _way in (remove, flip_middle):
            _enter(_thing, _name, _file, _way)


@damage("data file", "a byte of a page flipped")
def _page(mirror: SmallMirror) -> None:
    flip_page(mirror.table("items").file(0))


@damage("data file", "a byte of its footer flipped")
def _footer(mirror: SmallMirror) -> None:
    flip_footer(mirror.table("items").file(0))


@damage("data file", "the least value in its footer raised")
def _least(mirror: SmallMirror) -> None:
    path = mirror.table("items").file(0)
    statistics = pq.ParquetFile(path).metadata.row_group(0).column(0).statistics
    least, largest = (value.to_bytes(4, "little") for value in (statistics.min, statistics.max))
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # Each value comes behind its length.
    assert b"\x04" + least in content[begin:], "the footer has it"
    replace_content(path, content[:begin] + content[begin:].replace(b"\x04" + least, b"\x04" + largest))


@damage("data file", "bytes appended")
def _appended(mirror: SmallMirror) -> None:
    append(mirror.table("items").file(0))


@damage("data file", "the content of another of its table")
def _of_table(mirror: SmallMirror) -> None:
    table = mirror.table("items")
    paths = {path_of(entry["data_file"]["file_path"]) for _, entry in table.entries(0)} - {table.file(0)}
    replace_content(table.file(0), min(paths).read_bytes())


@damage("data file", "the content of another table's")
def _of_another(mirror: SmallMirror) -> None:
    replace_content(mirror.table("items").file(0), mirror.table("others").file(0).read_bytes())


@damage("data file", "exchanged with another table's")
def _exchanged(mirror: SmallMirror) -> None:
    _exchange(mirror.table("items").file(0), mirror.table("others").file(0))


def _exchange(path: Path, another: Path) -> None:
    content = path.read_bytes()
    replace_content(path, another.read_bytes())
    replace_content(another, content)


@damage("data file", "rewritten with a value changed")
def _value(mirror: SmallMirror) -> None:
    path = mirror.table("items").file(0)
    table = pq.read_table(path)
    place = table.schema.get_field_index("n")
    values = table.column(place).to_pylist()
    values[-1] += 1
    _write(path, table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type)))


@damage("data file", "rewritten without its last row")
def _without_row(mirror: SmallMirror) -> None:
    path = mirror.table("items").file(0)
    table = pq.read_table(path)
    _write(path, table.slice(0, table.num_rows - 1))


@damage("data file", "rewritten with rows in another order")
def _order(mirror: SmallMirror) -> None:
    path = mirror.table("items").file(0)
    table = pq.read_table(path)
    _write(path, table.take(list(reversed(range(table.num_rows)))))


def _write(path: Path, table: object) -> None:
    """As long as it was: the length alone would tell."""
    length = path.stat().st_size
    path.unlink()
    pq.write_table(table, path, compression="zstd")
    _pad(path, length)


def _pad(path: Path, length: int) -> None:
    """Brings a Parquet file to a length, by bytes before the footer that nothing refers to."""
    content = path.read_bytes()
    if len(content) < length:
        begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        replace_content(path, content[:begin] + bytes(length - len(content)) + content[begin:])


@damage("position-delete file", "rewritten with other positions")
def _positions(mirror: SmallMirror) -> None:
    path = mirror.table("orders").file(1)
    table = pq.read_table(path)
    positions = [position + 1 for position in table.column(1).to_pylist()]
    _write(path, table.set_column(1, table.schema.field(1), pa.array(positions, pa.int64())))


@damage("position-delete file", "rewritten without rows")
def _no_positions(mirror: SmallMirror) -> None:
    path = mirror.table("orders").file(1)
    _write(path, pq.read_table(path).slice(0, 0))


@damage("position-delete file", "rewritten to name another file")
def _other_file(mirror: SmallMirror) -> None:
    path = mirror.table("orders").file(1)
    table = pq.read_table(path)
    names = [str(name)[:-12] + "another.parq" for name in table.column(0).to_pylist()]
    _write(path, table.set_column(0, table.schema.field(0), pa.array(names, pa.string())))


@damage("deletion vectors", "the content of another table's")
def _vectors_of_another(mirror: SmallMirror) -> None:
    replace_content(mirror.table("items").file(1), mirror.table("others").file(1).read_bytes())


@damage("metadata", "its content as of an older version")
def _older_metadata(mirror: SmallMirror) -> None:
    table = mirror.table("items")
    older = table.metadata["metadata-log"][-1]["metadata-file"]
    replace_content(table.metadata_path, path_of(older).read_bytes())


@damage("metadata", "the content of another table's")
def _metadata_of_another(mirror: SmallMirror) -> None:
    replace_content(mirror.table("items").metadata_path, mirror.table("others").metadata_path.read_bytes())


@damage("manifest list", "the content of an older snapshot's")
def _older_list(mirror: SmallMirror) -> None:
    table = mirror.table("items")
    older = table.metadata["snapshots"][-2]
    replace_content(table.list_path, path_of(older["manifest-list"]).read_bytes())


@damage("manifest list", "the content of another table's")
def _list_of_another(mirror: SmallMirror) -> None:
    replace_content(mirror.table("items").list_path, mirror.table("others").list_path.read_bytes())


@damage("manifest", "the content of another table's")
def _manifest_of_another(mirror: SmallMirror) -> None:
    another = mirror.table("others").manifests[0].path
    replace_content(mirror.table("items").manifests[0].path, another.read_bytes())


@damage("manifest", "two of a table exchanged")
def _manifests(mirror: SmallMirror) -> None:
    first, second, *_ = mirror.table("items").manifests
    _exchange(first.path, second.path)


@damage("files of the lake", "a directory without rights", "readable by root")
def _rights(mirror: SmallMirror) -> None:
    mirror.table("items").file(0).parent.chmod(0)


@damage(
    "files of the lake",
    "temporary files of a program that was killed",
    "nothing refers to them; maintenance removes them",
)
def _leftovers(mirror: SmallMirror) -> None:
    directory = mirror.table("items").file(0).parent
    (directory / "half-a-file.parquet").write_bytes(b"PAR1")
    (directory / ".orphan.tmp").write_bytes(b"")


@damage("files of the lake", "older metadata files removed", "no commit and no reader of the present needs them")
def _older_gone(mirror: SmallMirror) -> None:
    for entry in mirror.table("items").metadata["metadata-log"]:
        path_of(entry["metadata-file"]).unlink(missing_ok=True)
