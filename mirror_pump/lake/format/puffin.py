"""Puffin files, which hold blobs about a table: here the deletion vectors of data files (Puffin spec, version 1).

What is read of a file is one blob, by the place that a manifest entry tells; its footer is for other engines and for
those who look at a file by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mirror_pump.lake.storage import StorageOptions, open_input

_MAGIC = b"PFA1"
_NOT_YET = -1
"""Snapshot ID and sequence number of a blob: they are not known before the commit."""
_ENDING = 12
"""Bytes of a file after the footer's payload: its length, flags and magic."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A part of a Puffin file, with what its footer says of it."""

    kind: str
    """Its type, such as `deletion-vector-v1`."""
    fields: tuple[int, ...]
    """IDs of the fields that it is about."""
    properties: dict[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class BlobPlace:
    """Where a blob is in its file: `content_offset` and `content_size_in_bytes` of manifest entries."""

    offset: int
    size: int


def encoded_puffin(blobs: Sequence[Blob]) -> tuple[bytes, tuple[BlobPlace, ...]]:
    """The content of a file with these blobs, not compressed, and the place of each."""
    places = []
    entries = []
    end = len(_MAGIC)
    for blob in blobs:
        place = BlobPlace(end, len(blob.content))
        end += place.size
        places.append(place)
        entries.append(
            {
                "type": blob.kind,
                "fields": blob.fields,
                "snapshot-id": _NOT_YET,
                "sequence-number": _NOT_YET,
                "offset": place.offset,
                "length": place.size,
                "properties": blob.properties,
            }
        )
    footer = orjson.dumps({"blobs": entries, "properties": {}})
    ending = (_MAGIC, footer, len(footer).to_bytes(4, "little"), bytes(4), _MAGIC)
    return b"".join((_MAGIC, *(blob.content for blob in blobs), *ending)), tuple(places)


def decoded_puffin(content: bytes) -> list[Blob]:
    """The blobs of a file of any engine, as they are stored. Raises ValueError for what is no Puffin file, for a
    compressed footer and for a compressed blob: use it in `decoding`."""
    ending = content[-_ENDING:]
    size = int.from_bytes(ending[:4], "little")
    begin = len(content) - _ENDING - size
    if {content[:4], content[-4:], content[begin - 4 : begin]} != {_MAGIC} or begin < 2 * len(_MAGIC):
        raise ValueError("the marks of a Puffin file are not there")
    if any(ending[4:8]):
        raise ValueError("its footer is compressed")
    return [_blob(entry, content) for entry in orjson.loads(content[begin:-_ENDING])["blobs"]]


def _blob(entry: Mapping[str, Any], content: bytes) -> Blob:
    if entry.get("compression-codec") is not None:
        raise ValueError(f"a blob is compressed by {entry['compression-codec']}")
    part = content[entry["offset"] : entry["offset"] + entry["length"]]
    return Blob(entry["type"], tuple(entry["fields"]), entry.get("properties") or {}, part)


def read_blobs(location: str, places: Sequence[BlobPlace], storage: StorageOptions) -> list[bytes]:
    """What is at these places of a file, which may end before. Raises FileMissing, and LakeError."""
    with open_input(location, storage) as source:
        return [bytes(source.read_at(place.size, place.offset)) for place in places]
