"""What comes from the source database: messages, segments of the stream, and the texts of values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from decoders import messages
from decoders.columns import ColumnType, Kind
from decoders.printing import print_values
from decoders.segment import decode_segment
from decoders.text import Parsed, parse_text
from decoders.variant import document_texts, encoded_documents
from decoders.variant_encoding import UnheldDocument
from decoders.variant_stream import encode_long_document
from decoders.variant_texts import document_text
from proofs.fuzz.guided_random import GuidedRandom
from tests.support import pgoutput_encoder as encoder
from tests.unit.decoders import test_segment_properties as model

_PARSERS: tuple[Callable[[bytes], object], ...] = (
    messages.parse_begin,
    messages.parse_commit,
    messages.parse_relation,
    messages.parse_truncate,
    messages.parse_logical_message,
    messages.parse_origin,
)
TYPES = tuple(
    ColumnType.parse(text)
    for text in (
        *("boolean", "int", "long", "float", "double", "decimal(9,2)", "decimal(38,10)", "string", "binary", "uuid"),
        *("date", "time", "timestamp", "timestamptz", "list<int>", "list<string>", "list<decimal(9,2)>", "list<date>"),
        "variant",
    )
)
SEPARATOR = "\0"
"""Between the values of an input: PostgreSQL has no text with it."""
MESSAGE_END = b"\xff\xfe"
SHAPE_BYTES = 32
_MOST_VALUES = 64


def message(content: bytes) -> None:
    """A message is parsed, or is a ValueError."""
    if content:
        with suppress(ValueError):
            _PARSERS[content[0] % len(_PARSERS)](content[1:])


def segment(content: bytes) -> None:
    """Messages of any bytes are a ValueError, or tables that Arrow finds valid, or the error of a relation."""
    random = GuidedRandom(content[:SHAPE_BYTES])
    shapes = {relation: model.a_table(random, relation).shape for relation in (1, 77)}
    framed = [part for part in content[SHAPE_BYTES:].split(MESSAGE_END) if part]
    try:
        results = decode_segment(*encoder.segment(framed), shapes)
    except ValueError:
        return
    for result in results:
        assert result.error is None or result.rows.num_rows == result.deleted_keys.num_rows == 0
        result.rows.validate(full=True)
        result.deleted_keys.validate(full=True)


def stream(content: bytes) -> None:
    """A stream that PostgreSQL could send, cut anywhere, turns the tables before it into those after it."""
    random = GuidedRandom(content)
    sent = model.a_stream(random, 1 + random.randrange(30))
    low, high = sorted(random.choices(range(len(sent.messages) + 1), k=2))
    shapes = {table.shape.relation_id: table.shape for table in sent.tables}
    segmented = encoder.segment(sent.messages[low:high])
    results = {result.relation_id: result for result in decode_segment(*segmented, shapes)}
    for table in sent.tables:
        model.check(table, results.pop(table.shape.relation_id, None), sent, low, high)
    assert not results


def value(content: bytes) -> None:
    """Values are the same whether they are parsed together or alone, and once they were printed and parsed again."""
    if not content:
        return
    column = TYPES[content[0] % len(TYPES)]
    texts = content[1:].decode(errors="ignore").split(SEPARATOR)[:_MOST_VALUES]
    together = _parsed(texts, column)
    alone = [_parsed([text], column) for text in texts]
    assert (together is None) == (None in alone), (column, texts)
    if together is None:
        return
    together.values.validate(full=True)
    printed = print_values(together.values, column)
    for place, parsed in enumerate(alone):
        assert parsed is not None
        assert printed[place : place + 1].equals(print_values(parsed.values, column)), (column, texts[place])
    if column.kind is not Kind.UUID:  # which is printed without dashes
        again = parse_text(printed, column)
        assert again.unrepresentable is None, (column, texts)
        assert printed.equals(print_values(again.values, column)), (column, texts)


def _parsed(texts: list[str], column: ColumnType) -> Parsed | None:
    try:
        return parse_text(pa.array(texts, pa.string()), column)
    except ValueError:
        return None


def document(content: bytes) -> None:
    """A document is encoded alike alone, among others and in parts, and its text is the same document."""
    text = content.decode(errors="ignore").replace(SEPARATOR, "")
    try:
        alone, unheld = encoded_documents(pa.array([text], pa.string()))
    except ValueError:
        return
    among, unheld_among = encoded_documents(pa.array([text] * 20, pa.string()))
    assert (unheld is None) == (unheld_among is None), text
    if unheld is not None:
        return
    assert among[19:].equals(alone), text
    with suppress(UnheldDocument):
        streamed = encode_long_document(text)
        assert {"metadata": streamed.metadata, "value": streamed.value} == alone[0].as_py(), text
    again, _ = encoded_documents(document_texts(alone))
    assert again.equals(alone), text


def variant(content: bytes) -> None:
    """The bytes of a variant have a text, which is a document, or are a ValueError."""
    size = int.from_bytes(content[:1], "big")
    try:
        text = document_text(content[1 : 1 + size], content[1 + size :])
    except ValueError:
        return
    encoded_documents(pa.array([text], pa.string()))
