"""`PUT /load/TABLE`: labelled loads by HTTP. Off unless the settings ask for it.

The body is streamed: it goes through a queue of a few parts to the thread of its load, and the server reads the socket
only as fast as PostgreSQL takes the rows. So memory does not depend on the body's size. Each load has a connection to
PostgreSQL and a thread of its own; there are few at a time.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import orjson
import psycopg
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mirror_pump.errors import ConnectionLost, MirrorPumpError, SourceError, UsageError
from mirror_pump.model import parse_count
from mirror_pump.ops.clients.client import client_of
from mirror_pump.ops.load import LOAD_PATH
from mirror_pump.ops.load.content_stream import ContentTooLarge
from mirror_pump.ops.load.load_job import LoadForbidden, LoadRequest, LoadResult, load
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.row_batch import InputError
from mirror_pump.runtime.telemetry import get_logger, redact
from mirror_pump.settings.config import Settings
from mirror_pump.source.loads.filtered_rows import TooManyFiltered
from mirror_pump.source.loads.labels import LabelBusy, LabelTaken
from mirror_pump.source.loads.load_writes import LoadMode

_PARTS = 8
"""Parts of the body, of 64 KiB each, that wait for the thread of the load."""
_DISCARDED_BYTES = 16 * 1024 * 1024
_DISCARDED_SECONDS = 2.0
"""A client that is refused while it still sends gets this much time: otherwise it might not read the answer."""
_RETRY_AFTER = "5"
"""Seconds."""

_CONTENT_TYPES = {
    "text/csv": FileFormat.CSV,
    "application/jsonl": FileFormat.JSONL,
    "application/x-ndjson": FileFormat.JSONL,
    "application/vnd.apache.parquet": FileFormat.PARQUET,
}

_Result = TypeVar("_Result")


class _BodyEnded(MirrorPumpError):
    """The body will not arrive completely."""


class _RequestBody(io.RawIOBase):
    """The body as a file for the thread of the load. The event loop puts its parts in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        """`patience`: seconds after which a part is not waited for any more; the event loop gives up before."""
        self._loop = loop
        self._patience = patience
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_PARTS)
        self._rest = b""
        self._ended: MirrorPumpError | None = None
        self._complete = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """In the thread of the load. Raises the error that `abort` was called with."""
        if not self._rest and not self._complete:
            part = self._next()
            self._complete, self._rest = part is None, part or b""
        content = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(content) :]
        return content

    def _next(self) -> bytes | None:
        try:
            part = asyncio.run_coroutine_threadsafe(self._queue.get(), self._loop).result(self._patience)
        except (TimeoutError, RuntimeError) as error:
            raise _BodyEnded("the server stops") from error
        if self._ended is not None:
            raise self._ended
        return part

    async def put(self, part: bytes | None) -> None:
        """In the event loop: add a part, or None for the end. Waits while too many are there."""
        await self._queue.put(part)

    def abort(self, error: MirrorPumpError) -> None:
        """In the event loop: the next read raises `error`."""
        self._ended = error
        with suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)


class _ArrivingBody:
    """The parts of a request's body, as they arrive."""

    def __init__(self, request: Request) -> None:
        self._receive = request.receive
        self.complete = False

    async def part(self) -> bytes | None:
        """The next part; None behind the last one. Raises ClientDisconnect."""
        while not self.complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self.complete = not message.get("more_body", False)
            if body := message.get("body", b""):
                return bytes(body)
        return None

    async def discard(self) -> None:
        """Read on for a moment, so that a client that still sends comes to read its answer."""
        left = _DISCARDED_BYTES
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DISCARDED_SECONDS):
                while left > 0 and (part := await self.part()):
                    left -= len(part)


class LoadEndpoint:
    """Answers `PUT /load/TABLE`. Used by one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._running = 0

    def routes(self) -> Sequence[BaseRoute]:
        """The part of the application that this is."""
        return (Route(f"{LOAD_PATH}{{table:path}}", self.load, methods=["PUT"]),)

    async def load(self, request: Request) -> Response:
        """Load the body."""
        try:
            requested_load = load_request(request)
        except UsageError as error:
            return _refusal(error, 400)
        if int(request.headers.get("content-length", "0")) > self._settings.load_bytes:
            return _refusal(self._too_large(), 413)
        if self._running >= self._limits.loads_at_once:
            busy = UsageError(f"{self._running} loads are running", "send the request again later, with the same label")
            return _refusal(busy, 429, retry=True)
        loop = asyncio.get_running_loop()
        body = _RequestBody(loop, 2 * self._limits.load_pause)
        done: asyncio.Future[LoadResult] = loop.create_future()
        self._running += 1
        threading.Thread(target=self._work, args=(loop, requested_load, body, done), name="load", daemon=True).start()
        arriving = _ArrivingBody(request)
        try:
            await self._feed(arriving, body, done)
            return _answer(await asyncio.shield(done))
        except asyncio.CancelledError:
            body.abort(_BodyEnded("the server stops"))
            raise
        except ClientDisconnect:
            gone = _BodyEnded("the client is gone")
            body.abort(gone)
            get_logger("load").info("a client broke a load off", table=requested_load.table, label=requested_load.label)
            return _failure(gone)
        except Exception as error:  # noqa: BLE001 - whatever happened, the client gets to know it
            if not isinstance(error, _BodyEnded):
                await arriving.discard()
            return _failure(error)
        finally:
            # Nothing else asks how it ended.
            done.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _too_large(self) -> ContentTooLarge:
        return ContentTooLarge(
            f"the body has more than {self._settings.load_bytes} bytes",
            "load it in parts, each with a label of its own",
        )

    async def _feed(self, arriving: _ArrivingBody, body: _RequestBody, done: asyncio.Future[LoadResult]) -> None:
        """Passes the body on until it ends, or the load has ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.load_seconds
        try:
            while not done.done():
                async with asyncio.timeout(min(self._limits.load_pause, max(deadline - loop.time(), 0))):
                    part = await _unless(done, arriving.part())
                await _unless(done, body.put(part))
                if part is None:
                    return
        except TimeoutError:
            error = _BodyEnded("the body did not arrive in time", "send it again, with the same label")
            body.abort(error)
            raise error from None

    def _work(
        self,
        loop: asyncio.AbstractEventLoop,
        requested_load: LoadRequest,
        body: _RequestBody,
        done: asyncio.Future[LoadResult],
    ) -> None:
        """In the thread of the load."""
        settle: partial[None]
        try:
            result = load(
                self._settings.require_dsn(),
                requested_load,
                cast("Any", body),
                most_bytes=self._settings.load_bytes,
                lock_timeout=self._limits.load_lock_seconds,
            )
            settle = partial(self._ended, done, result, None)
        except Exception as error:  # noqa: BLE001 - the event loop answers
            settle = partial(self._ended, done, None, error)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    def _ended(self, done: asyncio.Future[LoadResult], result: LoadResult | None, error: Exception | None) -> None:
        self._running -= 1
        if done.done():
            return
        if result is not None:
            done.set_result(result)
        elif error is not None:
            done.set_exception(error)


async def _unless(done: asyncio.Future[Any], awaitable: Awaitable[_Result]) -> _Result | None:
    """The result of `awaitable`, or None if `done` is done before."""
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({task, done}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()


def load_request(request: Request) -> LoadRequest:
    """What a request asks for, by headers or query parameters. Raises UsageError."""
    # Not a query parameter: web pages can choose these (mirror_pump/http/access.py).
    label = _header(request, "label")
    if label is None:
        raise UsageError("the header `label` is missing", "give each load a label of its own")
    form = _option(request, "format")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = _CONTENT_TYPES.get(content_type) if form is None else form
    columns = _option(request, "columns")
    try:
        return LoadRequest(
            table=request.path_params["table"],
            label=label,
            form=FileFormat(form or ""),
            mode=LoadMode(_option(request, "mode") or "upsert"),
            columns=None if columns is None else tuple(columns.split(",")),
            max_filtered=parse_count(_option(request, "max-filtered") or "0"),
            client=client_of(request.scope),
        )
    except ValueError as error:
        raise UsageError(
            f"the request cannot be understood: {error}",
            "`format` is csv, jsonl or parquet, `mode` upsert, insert or delete, `max-filtered` a number",
        ) from None


def _option(request: Request, name: str) -> str | None:
    """A header, or else a query parameter."""
    return request.query_params.get(name) if name not in request.headers else _header(request, name)


def _header(request: Request, name: str) -> str | None:
    value = request.headers.get(name)
    try:
        return None if value is None else value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise UsageError(f"the header `{name}` is not UTF-8") from None


def _answer(result: LoadResult) -> Response:
    return _json(result.to_json(), 200)


def _failure(error: Exception) -> Response:
    """The answer about a load that was not committed, or of which it is not known."""
    cause = error.__cause__
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    match error:
        case ContentTooLarge():
            return _refusal(error, 413)
        case _BodyEnded():
            return _refusal(error, 408)
        case TooManyFiltered():
            return _refusal(error, 422, filtered=[row.to_json() for row in error.filtered])
        case LabelTaken():
            return _refusal(error, 409)
        case LabelBusy() | ConnectionLost():
            return _refusal(error, 503, retry=True)
        case SourceError() if state == "42501":
            return _refusal(error, 403)
        case SourceError() if state in ("55P03", "40P01", "40001"):
            return _refusal(error, 503, retry=True)
        case LoadForbidden():
            return _refusal(error, 403)
        case UsageError() | InputError():
            return _refusal(error, 400)
        case MirrorPumpError():
            return _refusal(error, 422)
        case _:
            get_logger("load").error("a load failed", error=f"{type(error).__name__}: {error}", exc_info=error)
            return _json({"error": "an error of the server: see its log"}, 500, {"Connection": "close"})


def _refusal(error: MirrorPumpError, status: int, *, retry: bool = False, **further: Any) -> Response:
    headers = {"Connection": "close"} | ({"Retry-After": _RETRY_AFTER} if retry else {})
    document = {"error": redact(str(error)), "remedy": redact(error.remedy), "retry": retry, **further}
    return _json(document, status, headers)


def _json(document: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> Response:
    text = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
    return Response(text, status, headers, media_type="application/json")
