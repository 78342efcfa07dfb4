"""Answers in the protocol's form: documents, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from starlette.responses import Response

from mirror_pump.errors import ConnectionLost, LakeError, MirrorPumpError, OutcomeUnknown, SourceError, TransientRefusal
from mirror_pump.rest_catalog.protocol import ProtocolError, bad_request, commit_failed, forbidden
from mirror_pump.runtime.telemetry import get_logger, redact
from mirror_pump.tables.catalogs.lake_catalog import PumpsTable, TableMoved
from mirror_pump.tables.table.table_errors import TableMissing


def as_protocol_error(error: MirrorPumpError) -> ProtocolError:
    """What went wrong on our side. Clients try a 503 again by themselves, and a commit after a 409 of this kind."""
    text = redact(f"{error}; {error.remedy}" if error.remedy else str(error))
    if isinstance(error, TableMoved):
        return commit_failed(text)
    if isinstance(error, TableMissing):
        return ProtocolError(404, "NoSuchTableException", text)
    if isinstance(error, PumpsTable):
        return forbidden(text)
    get_logger("rest-catalog").warning("a request of the catalog failed", error=str(error), remedy=error.remedy)
    if isinstance(error, OutcomeUnknown):
        # The client must not delete what it wrote: the commit may have happened.
        return ProtocolError(500, "CommitStateUnknownException", text)
    if isinstance(error, ConnectionLost | TransientRefusal):
        return ProtocolError(503, "ServiceUnavailableException", text)
    if isinstance(error, SourceError | LakeError):
        return ProtocolError(500, "ServiceFailureException", text)
    return bad_request(text)


def error_response(error: ProtocolError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that is an error."""
    return json_answer(error.response(), error.status, headers)


def json_answer(document: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as an answer."""
    text = document.model_dump_json(exclude_none=True)
    return Response(text, status, headers, media_type="application/json")
