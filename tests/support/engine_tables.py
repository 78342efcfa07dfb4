"""Tables of both format versions with known rows, one or more for each feature that engines have to read.

They are made by the commit layer that the pump's own commits go through. What a table must have is kept beside it, row
by row, and never read back.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.variant import encoded_documents
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.next_metadata import with_branch, with_format_version
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioned_files import write_data_files, write_equality_delete_files
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.model import LakePartitioning, PartitionedColumn
from mirror_pump.ops.reads.engine_answers import Feature
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.table.row_files import write_rows
from mirror_pump.tables.table.table import Table

VERSIONS = (FORMAT_VERSION, VECTOR_VERSION)
Row = tuple[Any, ...]
_STORAGE = StorageOptions(fsync=False)
_START_MS = 1_760_000_000_000
_LONG, _TEXT = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
_MOMENT = datetime.datetime(2026, 3, 28, 23, 30, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Condition:
    """`column operator value`."""

    column: str
    operator: str
    value: Any

    def holds(self, value: Any) -> bool:
        """For a value of the column; NULL fulfils none."""
        if value is None:
            return False
        return bool({"=": value == self.value, "<": value < self.value, ">=": value >= self.value}[self.operator])


@dataclass(frozen=True)
class Question:
    """What an engine is asked about a table, and the right answer."""

    name: str
    columns: Mapping[str, ColumnType]
    rows: tuple[Row, ...]
    """In any order."""
    condition: Condition | None = None
    snapshot_id: int | None = None
    """None: the current one."""
    only_count: bool = False
    """The number of rows alone, which engines may take from the metadata."""
    documents: frozenset[str] = frozenset()
    """The variant columns, whose values are JSON."""


@dataclass(frozen=True)
class KnownTable:
    """A table, by its metadata file, and what is asked about it."""

    name: str
    feature: Feature
    version: int
    location: str
    questions: tuple[Question, ...]


@dataclass
class _Draft:
    """A table that is being made, with its rows by the value of its first column."""

    root: str
    version: int
    fields: tuple[LakeField, ...]
    partitioning: LakePartitioning | None = None
    rows: dict[Any, Row] = field(default_factory=dict)
    places: dict[Any, tuple[str, int]] = field(default_factory=dict)
    """URI of the file and number of the row."""
    commits: int = 0
    past: list[Question] = field(default_factory=list)
    """What is asked about former snapshots."""

    def __post_init__(self) -> None:
        self.table = LakeTable.create(
            self.schema,
            self.root,
            _STORAGE,
            {},
            _START_MS,
            partitioning=self.partitioning,
            format_version=self.version,
        ).table

    @property
    def schema(self) -> LakeSchema:
        return LakeSchema(0, self.fields, (self.fields[0].field_id,))

    def commit(self, delta: RowDelta) -> StagedCommit:
        self.commits += 1
        staged = self.table.stage(delta, _START_MS + 1000 * self.commits)
        self.table = staged.table
        return staged

    def append(self, rows: Sequence[Row]) -> StagedCommit:
        return self.commit(RowDelta((SegmentFiles(self.written(rows), ()),)))

    def written(self, rows: Sequence[Row]) -> tuple[WrittenFile, ...]:
        """One file for each partition. The rows of a table with partitions have to be deleted by their keys."""
        columns = [_stored([row[place] for row in rows], column.type) for place, column in enumerate(self.fields)]
        files = write_data_files(
            pa.table(columns, schema=self.schema.arrow), self.schema, self.root, _STORAGE, self.partitioning
        )
        for number, row in enumerate(rows):
            self.rows[row[0]] = row
            if len(files) == 1:
                self.places[row[0]] = (files[0].path, number)
        return files

    def hidden(self, keys: Iterable[Any]) -> dict[str, np.ndarray[Any, Any]]:
        """The places of rows, which the table then has no more."""
        rows: dict[str, list[int]] = {}
        for key in keys:
            path, number = self.places.pop(key)
            rows.setdefault(path, []).append(number)
            del self.rows[key]
        return {path: np.array(sorted(numbers), np.int64) for path, numbers in rows.items()}

    def delete(self, keys: Iterable[Any], come: Sequence[Row] = ()) -> StagedCommit:
        """By position-delete files, or by vectors where the format has them. `come`: rows that the commit adds."""
        hidden = self.hidden(keys)
        segments = (SegmentFiles(self.written(come), ()),) if come else ()
        return self.commit(RowDelta(segments, hidden=hidden))

    def delete_by_key(self, keys: Sequence[Any], come: Sequence[Row] = ()) -> StagedCommit:
        for key in keys:
            del self.rows[key]
        deleted = pa.table([pa.array(keys, self.fields[0].type.arrow)], schema=self.schema.key.arrow)
        deletes = write_equality_delete_files(deleted, self.schema, self.root, _STORAGE, self.partitioning)
        return self.commit(RowDelta((SegmentFiles(self.written(come) if come else (), deletes),)))

    def alter(self, fields: Sequence[LakeField], change: Callable[[Row], Row]) -> StagedCommit:
        """Other columns, without a change of files. `change`: what readers see of a row from then on."""
        self.fields = tuple(fields)
        self.rows = {key: change(row) for key, row in self.rows.items()}
        return self.commit(RowDelta((), schema=self.schema))

    def upgrade(self) -> None:
        location, self.version = self.table.metadata_location, VECTOR_VERSION
        metadata = with_format_version(self.table.metadata, VECTOR_VERSION, location, _START_MS + 1000 * self.commits)
        upgraded = next_location(metadata, location)
        write_all([(upgraded, metadata.to_json())], _STORAGE)
        self.table = replace(self.table, metadata=metadata, metadata_location=upgraded)

    @property
    def columns(self) -> dict[str, ColumnType]:
        return {column.name: column.type for column in self.fields}

    @property
    def documents(self) -> frozenset[str]:
        return frozenset(column.name for column in self.fields if column.type.kind is Kind.VARIANT)

    def remember(self, name: str, snapshot_id: int) -> None:
        """The snapshot that the table has now is asked for, too."""
        rows = tuple(self.rows.values())
        self.past.append(Question(name, self.columns, rows, snapshot_id=snapshot_id))
        self.past.append(Question(f"{name}: count(*)", self.columns, rows, snapshot_id=snapshot_id, only_count=True))

    def known(self, feature: Feature, version: int, *conditions: Condition) -> KnownTable:
        rows = tuple(self.rows.values())
        questions = [
            Question("all rows", self.columns, rows, documents=self.documents),
            Question("count(*)", self.columns, rows, only_count=True),
        ]
        names = list(self.columns)
        for condition in conditions:
            place = names.index(condition.column)
            chosen = tuple(row for row in rows if condition.holds(row[place]))
            name = f"{condition.column} {condition.operator} {condition.value}"
            questions.append(Question(name, self.columns, chosen, condition))
        name = self.root.rpartition("/")[2]
        return KnownTable(name, feature, version, self.table.metadata_location, (*questions, *self.past))


def _stored(values: Sequence[Any], column_type: ColumnType) -> pa.Array:
    """A column of a file. The values of variants are JSON."""
    if column_type.kind is Kind.VARIANT:
        return encoded_documents(pa.array(values, pa.string()))[0]
    return pa.array(values, column_type.arrow)


def _field(field_id: int, name: str, kind: str) -> LakeField:
    return LakeField(field_id, name, ColumnType.parse(kind), required=field_id == 1)


_PLAIN = (_field(1, "id", "long"), _field(2, "note", "string"))


def _notes(first: int, after: int) -> list[Row]:
    return [(number, None if number % 7 == 0 else f"note {number}") for number in range(first, after)]


def known_tables(directory: str, versions: Iterable[int] = VERSIONS) -> Iterator[KnownTable]:
    """Makes the tables in a directory, by its URI."""
    for version in versions:
        for feature, make in _MAKERS:
            if version >= VECTOR_VERSION or feature not in _LATER:
                yield from make(f"{directory}/v{version}-{feature}", version)


def _values(root: str, version: int) -> Iterator[KnownTable]:
    """A column of each type, which are NULL in the last row."""
    utc = datetime.UTC
    values: dict[str, tuple[Any, ...]] = {
        "boolean": (True, False),
        "int": (-(2**31), 2**31 - 1),
        "long": (-(2**63), 2**63 - 1),
        "float": (3.4028234663852886e38, float("nan"), 0.5, float("-inf")),
        "double": (1.7976931348623157e308, 5e-324, float("inf"), -0.0),
        "decimal(9,2)": (Decimal("-9999999.99"), Decimal("0.01")),
        "decimal(18,4)": (Decimal("99999999999999.9999"), Decimal("-0.0001")),
        "decimal(38,10)": (Decimal("-9999999999999999999999999999.9999999999"), Decimal("1.5")),
        "string": ("grüße 中文 🐘", "", "tab\t\\ line\n", "long " * 2000),
        "binary": (b"\x00\xff\\", b"", bytes(range(256))),
        "uuid": (uuid.UUID(int=1).bytes, uuid.UUID(int=2**128 - 1).bytes, uuid.UUID(int=1 << 127).bytes),
        "date": (datetime.date(1, 1, 1), datetime.date(1582, 10, 10), datetime.date(9999, 12, 31)),
        "timestamp": tuple(
            map(datetime.datetime.fromisoformat, ("1969-12-31T23:59:59.999999", "0001-01-01T00:00:00.000001"))
        ),
        "timestamptz": (
            datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, utc),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, utc),
        ),
    }
    draft, names = _typed(f"{root}-types", version, values)
    conditions = [
        Condition(names[kind], operator, values[kind][0])
        for kind, operator in (
            *(("int", "="), ("long", ">="), ("decimal(18,4)", ">="), ("decimal(38,10)", "=")),
            *(("string", "="), ("date", "="), ("timestamp", "="), ("timestamptz", "=")),
        )
    ]
    yield draft.known(Feature.VALUES, version, *conditions)
    lists: dict[str, tuple[Any, ...]] = {
        "list<int>": ([1, None, 3], [], [None]),
        "list<string>": (["x", None, 'y"z', "", "NULL"], []),
        "list<decimal(10,2)>": ([Decimal("1.50"), None, Decimal("-99999999.99")],),
        "list<timestamptz>": ([_MOMENT, None],),
    }
    yield _typed(f"{root}-lists", version, lists)[0].known(Feature.LISTS, version)


def _typed(root: str, version: int, values: Mapping[str, tuple[Any, ...]]) -> tuple[_Draft, dict[str, str]]:
    """A table with a column of each type, and their names by type."""
    names = {kind: f"c{place}" for place, kind in enumerate(values, 2)}
    fields = (_field(place, names[kind], kind) for place, kind in enumerate(values, 2))
    draft = _Draft(root, version, (_field(1, "id", "long"), *fields))
    count = max(map(len, values.values()))
    draft.append([(number, *(kind[number % len(kind)] for kind in values.values())) for number in range(count)])
    draft.append([(count, *(None for _ in values))])
    return draft, names


def _changed_columns(root: str, version: int) -> Iterator[KnownTable]:
    """Added without a value, renamed, dropped, dropped and added under the same name, made wider."""
    fields = [_field(1, "id", "long"), _field(2, "a", "int"), _field(3, "b", "float"), _field(4, "c", "string")]
    fields += [_field(5, "d", "decimal(9,2)"), _field(6, "e", "string")]
    draft = _Draft(f"{root}-altered", version, tuple(fields))
    draft.append([(number, number, number / 4, f"c{number}", Decimal(number), "e") for number in range(20)])
    fields = [_field(1, "id", "long"), _field(2, "a2", "long"), _field(3, "b", "double"), _field(7, "c", "long")]
    fields += [_field(5, "d", "decimal(20,2)"), _field(8, "f", "date")]
    draft.alter(fields, lambda row: (row[0], row[1], row[2], None, row[4], None))
    big = Decimal("123456789012345678.25")
    draft.append([(number, 2**40 + number, 0.1, number, big, _MOMENT.date()) for number in range(20, 30)])
    yield draft.known(
        Feature.CHANGED_COLUMNS,
        version,
        *(Condition("a2", "<", 5), Condition("a2", ">=", 2**40), Condition("b", "=", 0.25), Condition("c", "=", 25)),
        *(Condition("d", "=", Decimal("3.00")), Condition("f", "=", _MOMENT.date())),
    )


def _partitions(root: str, version: int) -> Iterator[KnownTable]:
    """A table for each kind of transform."""
    fields = (*_PLAIN, _field(3, "at", "timestamptz"), _field(4, "day", "date"))
    rows: list[Row] = [
        (number, f"note {number % 5}", _MOMENT + datetime.timedelta(hours=7 * (number - 20)),
         _MOMENT.date() + datetime.timedelta(days=40 * (number - 20)))
        for number in range(40)
    ]  # fmt: skip
    rows.append((40, None, None, None))
    conditions = (
        *(Condition("id", "=", 7), Condition("id", ">=", 35), Condition("note", "=", "note 3")),
        *(Condition("at", ">=", _MOMENT), Condition("day", "<", _MOMENT.date())),
    )
    for transforms in (
        {1: "identity"}, {2: "identity"}, {1: "bucket[4]", 2: "bucket[3]"}, {1: "truncate[10]"}, {2: "truncate[6]"},
        {3: "year"}, {3: "month"}, {3: "day"}, {3: "hour"}, {4: "year"}, {4: "month"}, {4: "day"}, {4: "identity"},
        {3: "identity", 2: "bucket[2]"},
    ):  # fmt: skip
        name = "-".join(
            f"{fields[place - 1].name}-{kind.strip(']').replace('[', '')}" for place, kind in transforms.items()
        )
        columns = tuple(PartitionedColumn(field_id, transform) for field_id, transform in transforms.items())
        draft = _Draft(f"{root}-{name}", version, fields, LakePartitioning(columns))
        draft.append(rows)
        yield draft.known(Feature.PARTITIONS, version, *conditions)


def _past(root: str, version: int) -> Iterator[KnownTable]:
    """Former snapshots, under the columns that they had, and one that is in a branch's history alone."""
    draft = _Draft(f"{root}-snapshots", version, _PLAIN)
    draft.remember("a snapshot", draft.append(_notes(0, 30)).snapshot_id)
    before, rows = draft.table, dict(draft.rows)
    aside = draft.append(_notes(900, 920)).snapshot_id
    draft.remember("a branch", aside)
    document = dict(with_branch(draft.table.metadata, "cold", aside).document)
    document["current-snapshot-id"] = before.metadata.current_snapshot_id
    document["refs"] = {**document["refs"], "main": {"type": "branch", "snapshot-id": document["current-snapshot-id"]}}
    draft.table = replace(draft.table, metadata=TableMetadata(document), manifests=before.manifests)
    draft.rows = rows
    draft.remember("a snapshot before the columns changed", draft.append(_notes(40, 45)).snapshot_id)
    draft.alter((_PLAIN[0], _field(3, "n", "long")), lambda row: (row[0], None))
    draft.append([(50, 7)])
    yield draft.known(Feature.PAST, version)
    draft = _Draft(f"{root}-deletes", version, _PLAIN)
    for number in range(3):
        draft.append(_notes(10 * number, 10 * number + 10))
        draft.remember(f"snapshot {number} with deletes", draft.delete([number, 10 * number + 5]).snapshot_id)
    yield draft.known(Feature.PAST_DELETES, version)


def _position_deletes(root: str, version: int) -> Iterator[KnownTable]:
    """In format version 3 those of before an upgrade."""
    draft = _Draft(f"{root}-few", FORMAT_VERSION, _PLAIN)
    draft.append(_notes(0, 100))
    draft.delete([0, 1, 50, 99])
    _upgrade(draft, version)
    conditions = (Condition("id", "=", 50), Condition("id", ">=", 90), Condition("note", "=", "note 51"))
    yield draft.known(Feature.POSITION_DELETES, version, *conditions)
    draft = _Draft(f"{root}-many", FORMAT_VERSION, _PLAIN)
    for number in range(12):
        draft.append(_notes(100 * number, 100 * number + 100))
        draft.delete([key for key in draft.rows if key % 13 == number], [(10_000 + number, "late")])
    draft.delete(range(300, 400) & draft.rows.keys())
    _upgrade(draft, version)
    conditions = (Condition("id", "=", 350), Condition("id", ">=", 1100), Condition("note", "=", "late"))
    yield draft.known(Feature.POSITION_DELETES, version, *conditions)
    if version >= VECTOR_VERSION:
        # Position deletes of before the upgrade, of a file that has a vector since, and of one that has none.
        draft = _Draft(f"{root}-upgraded", FORMAT_VERSION, _PLAIN)
        draft.append(_notes(0, 50))
        draft.append(_notes(50, 100))
        draft.delete([1, 2, 51, 52])
        draft.upgrade()
        draft.delete([3, 4])
        yield draft.known(Feature.UPGRADED, version, Condition("id", "=", 51), Condition("id", "<", 6))


def _upgrade(draft: _Draft, version: int) -> None:
    if version >= VECTOR_VERSION:
        draft.upgrade()


def _equality_deletes(root: str, version: int) -> Iterator[KnownTable]:
    """Of rows before, not of those that come with them or later."""
    draft = _Draft(f"{root}-keys", version, _PLAIN)
    draft.append(_notes(0, 100))
    draft.delete_by_key([3, 4, 99], [(4, "again")])
    draft.append([(3, "later")])
    draft.delete_by_key([50])
    conditions = (Condition("id", "=", 3), Condition("id", "=", 50), Condition("note", "=", "again"))
    yield draft.known(Feature.EQUALITY_DELETES, version, *conditions)
    # By the key, the deletes are in partitions as their rows are; by another column, they apply to every partition.
    for feature, field_id, name in (
        (Feature.EQUALITY_DELETES, 1, "partitions"), (Feature.GLOBAL_DELETES, 2, "all-partitions"),
    ):  # fmt: skip
        partitioning = LakePartitioning((PartitionedColumn(field_id, "bucket[3]"),))
        draft = _Draft(f"{root}-{name}", version, _PLAIN, partitioning)
        draft.append(_notes(0, 100))
        draft.delete_by_key([3, 4, 98], [(4, "again")])
        yield draft.known(feature, version, *conditions)


def _vectors(root: str, version: int) -> Iterator[KnownTable]:
    conditions = (Condition("id", "=", 50), Condition("id", ">=", 90), Condition("note", "=", "note 51"))
    draft = _Draft(f"{root}-one", version, _PLAIN)
    draft.append(_notes(0, 100))
    draft.delete([0, 1, 50, 99])
    yield draft.known(Feature.VECTORS, version, *conditions)
    # Each commit replaces the vectors of a third of the files, in one Puffin file; those of the others stay in theirs.
    # Manifests are merged, a file loses all rows.
    draft = _Draft(f"{root}-several", version, _PLAIN)
    for number in range(12):
        draft.append(_notes(100 * number, 100 * number + 100))
        some = [key for key in draft.rows if key % 13 == number and key // 100 % 3 == number % 3]
        draft.delete(some, [(10_000 + number, "late")])
    draft.delete(range(300, 400) & draft.rows.keys())
    gone = next(key for key in draft.rows if 500 < key < 10_000)
    draft.delete([gone])
    conditions = (Condition("id", "=", gone), Condition("id", "=", 350), Condition("note", "=", "late"))
    yield draft.known(Feature.VECTORS, version, *conditions, Condition("id", ">=", 90))
    # Runs and arrays of a bitmap's containers, and a second container.
    draft = _Draft(f"{root}-large", version, _PLAIN)
    draft.append(_notes(0, 150_000))
    draft.delete([*range(1000, 60_000), *range(60_000, 150_000, 3)])
    conditions = (Condition("id", ">=", 149_990), Condition("id", "=", 65_536), Condition("id", "=", 65_538))
    yield draft.known(Feature.VECTORS, version, *conditions)


def _lineage(root: str, version: int) -> Iterator[KnownTable]:
    """Rows that moved to another file, which has their row IDs as a column; a row that is new in the same file has
    none there."""
    table = Table.create(
        MemoryCatalog(root, _STORAGE), "lineage.moved", pa.schema([("id", pa.int64()), ("note", pa.string())]),
        format_version=version,
    )  # fmt: skip
    rows = _notes(0, 20)
    first = table.append(pa.table(list(zip(*rows, strict=True)), names=["id", "note"])).sequence_number
    (file,) = set(table.scan(columns=["_file"]).to_arrow()["_file"].to_pylist())
    left = [row for row in rows if row[0] not in (3, 4)]
    changed = [(3, "changed"), (100, "new"), (4, "changed")]
    moved = pa.table({
        "id": [row[0] for row in (*left, *changed)],
        "note": [row[1] for row in (*left, *changed)],
        "_row_id": pa.array([*(row[0] for row in left), 3, None, 4], pa.int64()),
        "_last_updated_sequence_number": pa.array([*(first for _ in left), None, None, None], pa.int64()),
    })  # fmt: skip
    second = table.commit_overwrite([file], write_rows(moved, table.metadata, _STORAGE)).sequence_number
    # The row without an ID is number 19 of a file whose rows come after the 20 of the first.
    lineage = [(row[0], row[0], first) for row in left] + [(3, 3, second), (100, 39, second), (4, 4, second)]
    columns, all_rows = {"id": _LONG, "note": _TEXT}, (*left, *changed)
    questions = (Question("all rows", columns, all_rows), Question("count(*)", columns, all_rows, only_count=True))
    yield KnownTable("moved-rows", Feature.MOVED_ROWS, version, table.metadata_location, questions)
    columns = {"id": _LONG, "_row_id": _LONG, "_last_updated_sequence_number": _LONG}
    asked = Question("the lineage of all rows", columns, tuple(lineage))
    yield KnownTable("row-lineage", Feature.LINEAGE, version, table.metadata_location, (asked,))


_DEFAULTS: Mapping[str, tuple[Any, Any, Any]] = {
    "boolean": (True, True, False),
    "int": (7, 7, 8),
    "long": (2**40, 2**40, 8),
    "float": (0.5, 0.5, 8.0),
    "double": (0.1, 0.1, 8.0),
    "decimal(9,2)": ("14.20", Decimal("14.20"), Decimal("8.00")),
    "decimal(38,10)": ("-1234567890123456789012345678.0123456789",
                       Decimal("-1234567890123456789012345678.0123456789"), Decimal("8.0000000000")),
    "string": ("grüße '", "grüße '", "other"),
    "binary": ("00ff5c", b"\x00\xff\\", b"other"),
    "uuid": (str(uuid.UUID(int=1 << 127)), uuid.UUID(int=1 << 127).bytes, uuid.UUID(int=3).bytes),
    "date": ("1969-12-31", datetime.date(1969, 12, 31), datetime.date(2026, 1, 1)),
    "timestamp": ("2026-03-28T23:30:00.000001", _MOMENT.replace(tzinfo=None, microsecond=1),
                  datetime.datetime(2026, 1, 1)),  # noqa: DTZ001 - a timestamp without a time zone
    "timestamptz": ("2026-03-28T23:30:00.000001+00:00", _MOMENT.replace(microsecond=1), _MOMENT),
}  # fmt: skip
"""By type: a default as Iceberg's JSON, the value, and another one."""


def _defaults(root: str, version: int) -> Iterator[KnownTable]:
    """A column of each type that came with a default, which older files lack."""
    for kind in _DEFAULTS:
        draft = _with_new_column(f"{root}-{kind.translate(str.maketrans('(,', '--', ')'))}", version, kind, ())
        _, value, other = _DEFAULTS[kind]
        by_value = [Condition("z", "=", value), Condition("z", "=", other)]
        # Few engines take the literals of these.
        conditions = [] if kind in ("binary", "uuid") else by_value
        yield draft.known(Feature.DEFAULTS, version, *conditions, Condition("id", "=", 5))
    draft = _with_new_column(f"{root}-deleted", version, "int", (2, 3))
    yield draft.known(Feature.VECTORS, version, Condition("z", "=", 7), Condition("id", "=", 3))


def _with_new_column(root: str, version: int, kind: str, deleted: Sequence[int]) -> _Draft:
    stored, value, other = _DEFAULTS[kind]
    draft = _Draft(root, version, _PLAIN)
    draft.append(_notes(0, 10))
    draft.append(_notes(10, 20))
    if deleted:
        draft.delete(deleted)
    draft.alter((*_PLAIN, replace(_field(3, "z", kind), initial_default=stored)), lambda row: (*row, value))
    draft.append([(20, "like the default", value), (21, "another", other), (22, "none", None)])
    return draft


def _variants(root: str, version: int) -> Iterator[KnownTable]:
    """Documents, JSON's null among them, and NULL."""
    documents = (
        '{"a": [1, 2.50, null, true, "x"], "b": {"c": 12345678901234567890123456789012345678}}',
        "null",
        '"grüße"',
        "[]",
        "-0.125",
        None,
    )
    draft = _Draft(f"{root}-documents", version, (_field(1, "id", "long"), _field(2, "doc", "variant")))
    draft.append([*enumerate(documents)])
    table = draft.known(Feature.VARIANT, version)
    others = Question("rows without the column", {"id": _LONG}, tuple((number,) for number in range(len(documents))))
    yield replace(table, questions=(others, *table.questions))


_MAKERS: tuple[tuple[Feature, Callable[[str, int], Iterator[KnownTable]]], ...] = (
    (Feature.VALUES, _values),
    (Feature.CHANGED_COLUMNS, _changed_columns),
    (Feature.PARTITIONS, _partitions),
    (Feature.PAST, _past),
    (Feature.POSITION_DELETES, _position_deletes),
    (Feature.EQUALITY_DELETES, _equality_deletes),
    (Feature.VECTORS, _vectors),
    (Feature.LINEAGE, _lineage),
    (Feature.DEFAULTS, _defaults),
    (Feature.VARIANT, _variants),
)
_LATER = {Feature.VECTORS, Feature.LINEAGE, Feature.DEFAULTS, Feature.VARIANT}
"""What tables have from format version 3 on."""
