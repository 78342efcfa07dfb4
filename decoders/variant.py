"""Documents of json and jsonb as variants, and variants as the texts that PostgreSQL prints for the jsonb.

A variant holds a document exactly, or not at all: numbers with all digits and their scale, strings, the set of keys. It
does not hold numbers of more than 38 digits, the character U+0000, lone surrogates and repeated keys; only json has the
last three. Nor does it hold what ends Spark's queries, documents of more than 500 levels or, as a variant, 128 MiB, and
what DuckDB takes minutes for, documents with more than 131,072 different names.
White space and the order of keys, which jsonb has neither of, are lost. Documents that jsonb prints equally have equal
bytes, so that variants are compared as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.variant_columns import encode_trees
from decoders.variant_encoding import LONG_TEXT, Dictionary, TreeParser, UnheldDocument, dictionary_of, encode_tree
from decoders.variant_stream import encode_long_document
from decoders.variant_texts import document_text

VARIANT_ARROW: pa.StructType = ColumnType(Kind.VARIANT).arrow
"""struct<metadata: binary not null, value: binary not null>, as the Parquet group of a variant."""

_BATCH = 1 << 19
"""Characters of the documents that are encoded together."""
_FEW = 16
"""Documents with the same names that are encoded one by one."""
_RARE_ESCAPE = re.compile(r"\\u(?:0000|[dD])")
"""Of U+0000, or half of a surrogate pair, among others."""


def encoded_documents(texts: pa.Array) -> tuple[pa.StructArray, pa.Array | None]:
    """The texts (string, of json or jsonb) as variants, and which of them a variant cannot hold.

    NULL stays NULL, and is the value of what cannot be held. The flags are bool, never NULL; None if all are held.
    Raises ValueError, with its beginning, for a text that is not JSON.
    """
    batch = _Batch(len(texts))
    waiting = 0
    for place, text in enumerate(texts.to_pylist()):
        if text is not None:
            batch.add(place, text)
            waiting += len(text)
            if waiting > _BATCH:
                batch.encode()
                waiting = 0
    batch.encode()
    nulls = pa.array([value is None for value in batch.values], pa.bool_())
    fields = [
        pa.array([content or b"" for content in contents], pa.binary()) for contents in (batch.metadata, batch.values)
    ]
    documents = pa.StructArray.from_arrays(fields, fields=list(VARIANT_ARROW), mask=nulls)
    if not batch.unheld:
        return documents, None
    flags = np.zeros(len(texts), bool)
    flags[batch.unheld] = True
    return documents, pa.array(flags)


class _Batch:
    """Documents that are encoded together, grouped by their names."""

    def __init__(self, count: int) -> None:
        self.metadata: list[bytes | None] = [None] * count
        self.values: list[bytes | None] = [None] * count
        self.unheld: list[int] = []
        """Places of what a variant cannot hold."""
        self._parser = TreeParser()
        self._trees: dict[frozenset[str], list[tuple[int, Any]]] = {}

    def add(self, place: int, text: str) -> None:
        """Raises ValueError if the text is not JSON."""
        try:
            if len(text) < LONG_TEXT and ("\\u" not in text or _RARE_ESCAPE.search(text) is None):
                tree = self._parser.parse(text)
                if tree is not None:
                    self._trees.setdefault(tree.names, []).append((place, tree.root))
                    return
            self.metadata[place], self.values[place] = encode_long_document(text)
        except (UnheldDocument, UnicodeEncodeError):
            # The latter is a lone surrogate.
            self.unheld.append(place)
        except ValueError as error:
            raise ValueError(f"{text[:200]!r} is not JSON: {error}") from error

    def encode(self) -> None:
        """Encodes the documents that were added since the last time."""
        for names, documents in self._trees.items():
            dictionary = dictionary_of(names)
            places, roots = zip(*documents, strict=True)
            for place, value in zip(places, _values(roots, dictionary), strict=True):
                if value is None:
                    self.unheld.append(place)
                else:
                    self.metadata[place] = dictionary.metadata
                    self.values[place] = value
        self._trees.clear()


def _values(roots: Sequence[Any], dictionary: Dictionary) -> Iterator[bytes | None]:
    """The values of documents with the names of the dictionary; None for what a variant cannot hold."""
    if len(roots) >= _FEW:
        try:
            yield from encode_trees(roots, dictionary).to_pylist()
            return
        except UnheldDocument:
            pass
    for root in roots:
        try:
            yield encode_tree(root, dictionary)
        except UnheldDocument:
            yield None


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
