"""Records are encoded as pyiceberg encodes them."""

from __future__ import annotations

import io
import random
from decimal import Decimal
from typing import Any

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from mirror_pump.lake.avro.record_encoder import Encoder

_PARTITION = StructType(
    NestedField(1000, "day", DateType(), required=False),
    NestedField(1001, "amount", DecimalType(9, 2), required=False),
    NestedField(1002, "name", StringType(), required=False),
)
_KINDS: list[IcebergType] = [
    IntegerType(),
    LongType(),
    StringType(),
    BinaryType(),
    BooleanType(),
    DoubleType(),
    ListType(1, LongType(), element_required=True),
    MapType(2, IntegerType(), 3, LongType(), value_required=True),
    MapType(4, IntegerType(), 5, BinaryType(), value_required=True),
    _PARTITION,
]
_RECORD = StructType(
    *(NestedField(10 + place, f"f{place}", kind, required=True) for place, kind in enumerate(_KINDS)),
    *(NestedField(30 + place, f"g{place}", kind, required=False) for place, kind in enumerate(_KINDS)),
)


def _value(kind: IcebergType, drawn: random.Random) -> Any:
    match kind:
        case BooleanType():
            return drawn.random() < 0.5
        case DoubleType():
            return drawn.uniform(-1e9, 1e9)
        case DateType():
            return drawn.randrange(-(2**20), 2**20)
        case DecimalType():
            return Decimal(drawn.randrange(-(10**9), 10**9)).scaleb(-2)
        case StringType():
            return "".join(drawn.choices("aé漢🚰\0", k=drawn.choice([0, 1, 63, 64, 200])))
        case BinaryType():
            return drawn.randbytes(drawn.choice([0, 1, 63, 64, 9000]))
        case ListType():
            return [_value(kind.element_type, drawn) for _ in range(drawn.choice([0, 1, 100]))]
        case MapType():
            return {key: _value(kind.value_type, drawn) for key in range(drawn.choice([0, 1, 100]))}
        case StructType():
            return Record(*(None if drawn.random() < 0.3 else _value(field.field_type, drawn) for field in kind.fields))
    bits = drawn.choice([1, 6, 7, 13, 14, 31 if isinstance(kind, IntegerType) else 63])
    return drawn.choice([-1, 0, 1]) * drawn.randrange(2**bits) - drawn.randrange(2)


def test_each_type_is_encoded_as_pyiceberg_does() -> None:
    drawn = random.Random(7)
    encoder, reference = Encoder(_RECORD), construct_writer(_RECORD)
    for _ in range(200):
        values = [_value(kind, drawn) for kind in _KINDS]
        values += [None if drawn.random() < 0.3 else _value(kind, drawn) for kind in _KINDS]
        buffer = io.BytesIO()
        reference.write(BinaryEncoder(buffer), Record(*values))
        assert encoder.encode(*values) == buffer.getvalue()
