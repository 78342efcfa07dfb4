"""What comes from files: those of the lake, which any engine may have written, and those that people bring."""

from __future__ import annotations

import zlib
from pathlib import Path
from tempfile import NamedTemporaryFile

import pyarrow as pa
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.types import StructType

from mirror_pump.cli.commands.apply import read_declaration
from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.lake.avro.container_files import container_of_block, file_header
from mirror_pump.lake.format.deletion_vectors import DeletionVector
from mirror_pump.lake.format.puffin import decoded_puffin
from mirror_pump.lake.manifests.entry_reader import EntryReader
from mirror_pump.lake.manifests.manifest_entries import formats_of, stored_entries
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.clients.access_file import AccessRules
from mirror_pump.ops.row_files.csv_rows import CsvForm, TextLayout
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import InputFile, open_stored
from mirror_pump.ops.row_files.row_batch import RowBatch
from mirror_pump.ops.row_files.text_blocks import text_blocks
from mirror_pump.ops.row_files.text_rows import named_blocks, parsed
from tests.unit.lake.manifests.test_stored_entries import PARTITION

SCHEMAS = tuple(formats_of(partition, version) for partition in (StructType(), PARTITION) for version in (2, 3))
_NAMES = ("a", "b", "c")
_MAGIC = b"\xd1\xd3\x39\x64"
_MANY = 1 << 20


def manifest(content: bytes) -> None:
    """The records of a manifest are entries, or raise: its readers make every error that of the file.

    The first byte chooses the schema, the second says how many records there are.
    """
    if len(content) < 2:
        return
    formats = SCHEMAS[content[0] % len(SCHEMAS)]
    stored = container_of_block(file_header(formats.schema, {}), content[1], content[2:])
    if _records(stored) is None:
        return
    try:
        _, entries = stored_entries(stored, 1, 2, 3)
    except (MemoryError, AssertionError):
        raise
    except Exception:  # noqa: BLE001 - see `mirror_pump.lake.format.damaged_files.decoding`
        return
    for entry in entries:
        assert isinstance(entry.path, str), entry
        assert isinstance(entry.records, int), entry


def container(content: bytes) -> None:
    """A container of any schema has as many rows as pyiceberg's decoder in Python reads, or raises."""
    records = _records(content)
    if records is None:
        return
    try:
        rows = sum(1 for _ in EntryReader(content, None).rows())
    except (MemoryError, AssertionError):
        raise
    except Exception:  # noqa: BLE001 - as above
        return
    assert rows == records


def _records(content: bytes) -> int | None:
    """The number of records, by pyiceberg's decoder in Python; None if it raises. The compiled one, which the program
    has for its speed, reads beyond its buffer where a damaged length says so, and may end the process."""
    decoder, count = StreamingBinaryDecoder(content), 0
    try:
        header = resolve_reader(META_SCHEMA, META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
        reader = resolve_reader(header.get_schema(), header.get_schema())
        while decoder.tell() < len(content):
            records, block = decoder.read_int(), decoder.read_bytes()
            if decoder.read(SYNC_SIZE) != header.sync or not 0 <= records <= len(content) * 1000:
                return None
            inner = block if header.compression_codec() is None else zlib.decompress(block, -zlib.MAX_WBITS)
            stored = StreamingBinaryDecoder(inner)
            for _ in range(records):
                reader.read(stored)
            if stored.tell() > len(inner):
                return None
            count += records
    except Exception:  # noqa: BLE001 - whatever it stumbles over
        return None
    return count if decoder.tell() <= len(content) else None


def puffin(content: bytes) -> None:
    """A Puffin file has blobs, or raises."""
    try:
        decoded_puffin(content)
    except (MemoryError, AssertionError):
        raise
    except Exception:  # noqa: BLE001 - as above
        return


def vector(content: bytes) -> None:
    """A bitmap of any bytes, with its right checksum, has rows in order, or is a ValueError."""
    body = _MAGIC + content
    try:
        rows = DeletionVector.from_blob(len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big"))
    except ValueError:
        return
    if len(rows) > _MANY:
        return
    positions = rows.positions
    assert len(positions) == len(rows)
    assert (positions[1:] > positions[:-1]).all(), positions
    assert DeletionVector.from_blob(rows.to_blob()) == rows
    assert DeletionVector.of(positions) == rows


def csv(content: bytes) -> None:
    """A CSV file has the same rows however it is cut, and whether values are converted at once or later."""
    _same_rows(content, FileFormat.CSV)


def jsonl(content: bytes) -> None:
    """A file of JSON lines has the same rows however it is cut."""
    _same_rows(content, FileFormat.JSONL)


def _same_rows(content: bytes, kind: FileFormat) -> None:
    with NamedTemporaryFile(suffix=f".{kind}") as file:
        file.write(content)
        file.flush()
        whole, parts = (_rows(file.name, kind, size) for size in (1 << 20, 7))
    assert whole == parts, (whole, parts)


def _rows(path: str, kind: FileFormat, block_bytes: int) -> tuple[object, ...]:
    """All rows of a file, and the lines that are none; or the line that stops the reading."""
    file = InputFile(0, path, kind, 0)
    layout = TextLayout(file, _NAMES, CsvForm(header=False), subset=True)
    rows: list[object] = []
    try:
        _, blocks = named_blocks(
            text_blocks(file, open_stored(file, StorageOptions()), block_bytes=block_bytes), layout
        )
        for block in blocks:
            rows += _lines(parsed(block, layout))
    except MirrorPumpError:
        return ("refused",)
    return tuple(rows)


def _lines(batch: RowBatch) -> list[object]:
    columns = [column.cast(pa.string()).to_pylist() for column in batch.columns.values()]
    rows = dict(zip(batch.lines.tolist(), zip(*columns, strict=True), strict=True))
    rows |= {row.place.line: ("refused",) for row in batch.refused}
    return [*sorted(rows.items())]


def declaration(content: bytes) -> None:
    """A declaration has tables, or is a UsageError."""
    _read_by(content, read_declaration)


def access_file(content: bytes) -> None:
    """An access file has rules, or is a UsageError."""
    _read_by(content, AccessRules)


def _read_by(content: bytes, read: object) -> None:
    assert callable(read)
    with NamedTemporaryFile(suffix=".toml") as file:
        file.write(content)
        file.flush()
        try:
            read(Path(file.name))
        except UsageError:
            return
