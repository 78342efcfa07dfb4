"""The kinds of types in the lake, and what each part of the program has to know of one. Arrow is not loaded here.

A kind is an entry of `FACTS`. Code of its own stands in a few places more, which CONTRIBUTING lists ("a new column
type"): the mapping of PostgreSQL's types, the parser, the printer, the copy's binary form, ingested values, defaults
as JSON, and how PostgreSQL tells that a value does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(StrEnum):
    """The Iceberg types that the mirror uses, under Iceberg's names."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    UUID = "uuid"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    LIST = "list"
    VARIANT = "variant"
    """A document of json or jsonb (decoders/variant.py)."""
    STRUCT = "struct"
    """Of change feeds only: the old row. Its fields are the LakeField's (mirror_pump.lake.format.schema)."""
    MAP = "map"
    """Of change feeds only, as STRUCT."""


@dataclass(frozen=True)
class KindFacts:
    """What holds for all values of a kind. Kinds with parameters (DECIMAL, LIST, STRUCT, MAP) leave out what these
    decide."""

    arrow: Callable[[ModuleType], pa.DataType] | None = None
    """The Arrow type that stream and copy produce; called with pyarrow."""
    postgres: str | None = None
    """PostgreSQL's type to which a value can be cast without a change, and from which JDBC passes it on."""
    duckdb: str | None = None
    spark: str | None = None
    """Class of pyspark.sql.types. None: Spark does not read it."""
    packing: str | None = None
    """struct format of a value as Iceberg's bounds have it. None: bounds are made in another way, or not at all."""
    key_bytes: int | None = None
    """Bytes of a value in a packed key. None: of any length, or never in a key."""
    is_bytes: bool = False
    """Whether a value is a sequence of bytes, of any length."""
    holds_all: bool = True
    """Whether it can hold every value of the PostgreSQL types that it is for. If not, some values are stored as raw
    text."""
    is_whole: bool = False
    is_floating: bool = False
    """Values that are equal to an engine may differ (-0 and 0, NaN)."""
    is_temporal: bool = False
    """Days or instants, counted from 1970: PostgreSQL's years go beyond those of Python, and both infinities are
    values."""
    is_unsigned: bool = False
    """Whether PostgreSQL and Parquet compare its bytes unsigned, while released engines compare them signed."""
    has_bounds: bool = True
    """Whether manifests get bounds. Not for UUIDs: released engines compare them signed, the footer's statistics are
    unsigned, and bounds on a key that compare the wrong way make a reader skip a delete file. Random ones would prune
    nothing anyway."""
    has_statistics: bool = True
    """Whether footers get statistics: those of some kinds mislead readers, or say nothing. Statistics of floats leave
    NaN out; DuckDB treats NaN as the greatest value, and so skips row groups that hold it. UUIDs: as for bounds.
    Variants do not order by their bytes."""
    read_by_arrow: bool = False
    """Whether Arrow's CSV reader takes a text for the value that PostgreSQL takes it for, or refuses it."""
    copied_as_text: bool = False
    """Whether a copy that is not packed reads values as PostgreSQL prints them."""
    passed_as_text: bool = False
    """Whether engines get values of the heap as text: neither Spark nor DuckDB accepts Arrow's UUID type."""
    quoted_in_array: bool = True
    """Whether a value in the text of an array may need quotes."""
    transforms: tuple[str, ...] = ()
    """Iceberg's partition transforms, without their parameter. Not `identity` of UUIDs, which engines order
    differently, so they would skip manifests with matching rows; nor of floats, of which two that are equal may be of
    two partitions."""
    widens_to: Kind | None = None
    """The kind as which its files can be read (Iceberg spec, type promotion)."""


_WHOLE: Final = ("identity", "bucket", "truncate")
_DAYS: Final = ("identity", "bucket", "day", "month", "year")

FACTS: Final[dict[Kind, KindFacts]] = {
    Kind.BOOLEAN: KindFacts(
        read_by_arrow=True,
        arrow=lambda pa: pa.bool_(),
        postgres="boolean",
        duckdb="BOOLEAN",
        spark="BooleanType",
        packing="<?",
        key_bytes=1,
        quoted_in_array=False,
        transforms=("identity",),
    ),
    Kind.INT: KindFacts(
        read_by_arrow=True,
        arrow=lambda pa: pa.int32(),
        postgres="int4",
        duckdb="INTEGER",
        spark="IntegerType",
        packing="<i",
        key_bytes=4,
        is_whole=True,
        quoted_in_array=False,
        transforms=_WHOLE,
        widens_to=Kind.LONG,
    ),
    Kind.LONG: KindFacts(
        read_by_arrow=True,
        arrow=lambda pa: pa.int64(),
        postgres="int8",
        duckdb="BIGINT",
        spark="LongType",
        packing="<q",
        key_bytes=8,
        is_whole=True,
        quoted_in_array=False,
        transforms=_WHOLE,
    ),
    Kind.FLOAT: KindFacts(
        arrow=lambda pa: pa.float32(),
        postgres="float4",
        duckdb="FLOAT",
        spark="FloatType",
        packing="<f",
        is_floating=True,
        has_statistics=False,
        quoted_in_array=False,
        widens_to=Kind.DOUBLE,
    ),
    Kind.DOUBLE: KindFacts(
        arrow=lambda pa: pa.float64(),
        postgres="float8",
        duckdb="DOUBLE",
        spark="DoubleType",
        packing="<d",
        is_floating=True,
        has_statistics=False,
        quoted_in_array=False,
    ),
    Kind.DECIMAL: KindFacts(
        read_by_arrow=True,
        copied_as_text=True,
        key_bytes=16,
        holds_all=False,
        quoted_in_array=False,
        transforms=("identity", "bucket"),
    ),
    Kind.STRING: KindFacts(
        copied_as_text=True,
        arrow=lambda pa: pa.string(),
        duckdb="VARCHAR",
        spark="StringType",
        is_bytes=True,
        transforms=_WHOLE,
    ),
    Kind.BINARY: KindFacts(
        arrow=lambda pa: pa.binary(),
        postgres="bytea",
        duckdb="BLOB",
        spark="BinaryType",
        is_bytes=True,
        transforms=("bucket",),
    ),
    Kind.UUID: KindFacts(
        passed_as_text=True,
        is_unsigned=True,
        arrow=lambda pa: pa.binary(16),
        postgres='text COLLATE "C"',
        duckdb="UUID",
        spark="StringType",
        key_bytes=16,
        has_bounds=False,
        has_statistics=False,
        transforms=("bucket",),
    ),
    Kind.DATE: KindFacts(
        read_by_arrow=True,
        arrow=lambda pa: pa.date32(),
        postgres="date",
        duckdb="DATE",
        spark="DateType",
        packing="<i",
        key_bytes=4,
        holds_all=False,
        is_temporal=True,
        transforms=_DAYS,
    ),
    Kind.TIME: KindFacts(
        copied_as_text=True, arrow=lambda pa: pa.time64("us"), duckdb="TIME", packing="<q", key_bytes=8, holds_all=False
    ),
    Kind.TIMESTAMP: KindFacts(
        read_by_arrow=True,
        arrow=lambda pa: pa.timestamp("us"),
        postgres="timestamp",
        duckdb="TIMESTAMP",
        spark="TimestampNTZType",
        packing="<q",
        key_bytes=8,
        holds_all=False,
        is_temporal=True,
        transforms=(*_DAYS, "hour"),
    ),
    Kind.TIMESTAMPTZ: KindFacts(
        read_by_arrow=True,
        arrow=lambda pa: pa.timestamp("us", tz="UTC"),
        postgres="timestamptz",
        duckdb="TIMESTAMPTZ",
        spark="TimestampType",
        packing="<q",
        key_bytes=8,
        holds_all=False,
        is_temporal=True,
        transforms=(*_DAYS, "hour"),
    ),
    Kind.LIST: KindFacts(copied_as_text=True, holds_all=False, has_bounds=False),
    Kind.VARIANT: KindFacts(
        copied_as_text=True,
        arrow=lambda pa: pa.struct(
            [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
        ),
        duckdb="VARCHAR",
        spark="VariantType",
        holds_all=False,
        has_bounds=False,
        has_statistics=False,
    ),
    Kind.STRUCT: KindFacts(),
    Kind.MAP: KindFacts(),
}
