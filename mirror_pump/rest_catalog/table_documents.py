"""Answers of table loads and commits: a metadata file's bytes as they are, with a few bytes before and behind them.

Metadata files never change, so an answer is made once for each file and kept.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from mirror_pump.lake.document.metadata_files import any_version_of, json_of
from mirror_pump.lake.document.next_metadata import only_referenced
from mirror_pump.lake.storage import StorageOptions, read_bytes


@dataclass(frozen=True)
class TableDocument:
    """The answer of one load."""

    body: bytes = field(repr=False)
    """JSON: LoadTableAnswer, or CommitTableAnswer. May contain credentials."""
    etag: str


class TableDocuments:
    """Makes answers, and keeps those that were used last. Threads share it."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of all answers that are kept."""
        self._most = most_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, TableDocument] = OrderedDict()
        self._size = 0

    def answer(
        self, location: str, storage: StorageOptions, config: Mapping[str, str] | None, *, refs_only: bool = False
    ) -> TableDocument:
        """The answer for a metadata file. `config`: what a client needs besides to read the table; None: that is not
        said. `refs_only`: of the snapshots only those that a branch or tag names. Raises LakeError."""
        etag = etag_of(location, config, refs_only=refs_only)
        with self._lock:
            cached = self._documents.get(etag)
            if cached is not None:
                self._documents.move_to_end(etag)
                return cached
        content = read_bytes(location, storage)
        metadata = any_version_of(content, location)
        content = only_referenced(metadata).to_json() if refs_only else json_of(content)
        head = b'{"metadata-location":' + orjson.dumps(location) + b',"metadata":'
        tail = b"}" if config is None else b',"config":' + orjson.dumps(dict(config)) + b"}"
        made = TableDocument(head + content + tail, etag)
        self._keep(made)
        return made

    def _keep(self, document: TableDocument) -> None:
        with self._lock:
            if document.etag in self._documents or len(document.body) > self._most:
                return
            self._documents[document.etag] = document
            self._size += len(document.body)
            while self._size > self._most:
                _, dropped = self._documents.popitem(last=False)
                self._size -= len(dropped.body)


def etag_of(location: str, config: Mapping[str, str] | None, *, refs_only: bool) -> str:
    """The answer's entity tag: equal if all of the answer is equal."""
    content = orjson.dumps([location, None if config is None else dict(config), refs_only], option=orjson.OPT_SORT_KEYS)
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'
