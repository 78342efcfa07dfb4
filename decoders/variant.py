"""Documents of json and jsonb as variants, and variants as the texts that PostgreSQL prints for the jsonb.

A variant holds a document exactly, or not at all: numbers with all digits and their scale, strings, the set of keys. It
does not hold numbers of more than 38 digits, the character U+0000, lone surrogates and repeated keys; only json has the
last three. Nor does it hold what ends Spark's queries: documents of more than 500 levels or, as a variant, 128 MiB.
White space and the order of keys, which jsonb has neither of, are lost. Documents that jsonb prints equally have equal
bytes, so that variants are compared as bytes.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.variant_encoding import LONG_TEXT, EncodedVariant, UnheldDocument, encode_tree
from decoders.variant_stream import encode_long_document
from decoders.variant_texts import document_text

VARIANT_ARROW: pa.StructType = ColumnType(Kind.VARIANT).arrow
"""struct<metadata: binary not null, value: binary not null>, as the Parquet group of a variant."""

_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A backslash before it would be one that is escaped."""
_NOTHING = EncodedVariant(b"", b"")
"""In place of NULL: the fields of the struct have no NULLs."""


def encoded_documents(texts: pa.Array) -> tuple[pa.StructArray, pa.Array | None]:
    """The texts (string, of json or jsonb) as variants, and which of them a variant cannot hold.

    NULL stays NULL, and is the value of what cannot be held. The flags are bool, never NULL; None if all are held.
    Raises ValueError, with its beginning, for a text that is not JSON.
    """
    variants: list[EncodedVariant | None] = []
    unheld = []
    for place, text in enumerate(texts.to_pylist()):
        try:
            variants.append(None if text is None else _encoded_document(text))
        except UnheldDocument:
            variants.append(None)
            unheld.append(place)
    metadata = pa.array([(variant or _NOTHING).metadata for variant in variants], pa.binary())
    values = pa.array([(variant or _NOTHING).value for variant in variants], pa.binary())
    nulls = pa.array([variant is None for variant in variants], pa.bool_())
    documents = pa.StructArray.from_arrays([metadata, values], fields=list(VARIANT_ARROW), mask=nulls)
    if not unheld:
        return documents, None
    flags = np.zeros(len(variants), bool)
    flags[unheld] = True
    return documents, pa.array(flags)


def _encoded_document(text: str) -> EncodedVariant:
    """Raises UnheldDocument, or ValueError if the text is not JSON."""
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise UnheldDocument
    try:
        if len(text) < LONG_TEXT:
            try:
                return encode_tree(text)
            except RecursionError:
                pass
        return encode_long_document(text)
    except UnicodeEncodeError:
        # A lone surrogate.
        raise UnheldDocument from None
    except ValueError as error:
        raise ValueError(f"{text[:200]!r} is not JSON: {error}") from error


def document_texts(values: pa.StructArray) -> pa.StringArray:
    """The texts that PostgreSQL prints for the jsonb of variants, also of those that other engines wrote.

    NULL stays NULL. Values that JSON has no type for become strings. Raises ValueError for bytes that are no variant.
    """
    metadata = values.field("metadata").to_pylist()
    valid = values.is_valid().to_pylist()
    contents = values.field("value").to_pylist()
    texts = (
        document_text(names, content) if is_valid else None
        for names, content, is_valid in zip(metadata, contents, valid, strict=True)
    )
    return pa.array(texts, pa.string())
