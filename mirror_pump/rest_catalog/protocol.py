"""Documents and errors of Iceberg's REST catalog protocol (its OpenAPI document is rest-catalog-open-api.yaml)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class _Document(BaseModel):
    """A document with names as the protocol has them."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)


class CatalogConfig(_Document):
    """Answer of `GET /v1/config`."""

    defaults: dict[str, str] = {}
    overrides: dict[str, str] = {}
    endpoints: list[str] = []


class TableReference(_Document):
    """A table's name: `TableIdentifier` in the protocol."""

    namespace: list[str]
    name: str


class NamespaceList(_Document):
    """Answer of `GET .../namespaces`."""

    namespaces: list[list[str]]
    next_page_token: str | None = Field(default=None, serialization_alias="next-page-token")


class Namespace(_Document):
    """Answer of `GET .../namespaces/{namespace}`."""

    namespace: list[str]
    properties: dict[str, str] = {}


class TableList(_Document):
    """Answer of `GET .../tables`, and of `GET .../views`."""

    identifiers: list[TableReference]
    next_page_token: str | None = Field(default=None, serialization_alias="next-page-token")


class TransactionPart(_Document):
    """A part of TransactionRequest, which is a `CommitTableRequest` in the protocol."""

    identifier: TableReference
    requirements: list[JsonValue] = []
    updates: list[JsonValue] = []


class TransactionRequest(_Document):
    """Body of `POST .../transactions/commit`."""

    table_changes: list[TransactionPart] = Field(validation_alias="table-changes")


class StorageCredential(_Document):
    """Credentials for the locations that begin with `prefix`."""

    prefix: str
    config: dict[str, str] = Field(repr=False)


class Credentials(_Document):
    """Answer of `GET .../tables/{table}/credentials`."""

    storage_credentials: list[StorageCredential] = Field(serialization_alias="storage-credentials")


class ErrorModel(_Document):
    """What happened, and what to do."""

    message: str
    type: str
    code: int


class ErrorResponse(_Document):
    """The body of every answer that is an error."""

    error: ErrorModel


class ProtocolError(Exception):
    """An answer that is an error. Engines know errors by their status; some show the message of a 400 or 403 only, so
    what a person has to act on is one of these."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """The protocol's name of the error, which is that of Iceberg's exception."""

    def response(self) -> ErrorResponse:
        return ErrorResponse(error=ErrorModel(message=str(self), type=self.kind, code=self.status))


def bad_request(message: str) -> ProtocolError:
    """Nothing can be answered until somebody asks for something else."""
    return ProtocolError(400, "BadRequestException", message)


def no_such_namespace(name: str) -> ProtocolError:
    return ProtocolError(404, "NoSuchNamespaceException", f"Namespace does not exist: {name}")


def no_such_table(namespace: str, name: str) -> ProtocolError:
    return ProtocolError(404, "NoSuchTableException", f"Table does not exist: {namespace}.{name}")


def no_such_view(namespace: str, name: str) -> ProtocolError:
    return ProtocolError(404, "NoSuchViewException", f"View does not exist: {namespace}.{name}")


def forbidden(message: str) -> ProtocolError:
    return ProtocolError(403, "ForbiddenException", message)


def namespace_exists(name: str) -> ProtocolError:
    return ProtocolError(409, "AlreadyExistsException", f"Namespace already exists: {name}")


def namespace_not_empty(message: str) -> ProtocolError:
    return ProtocolError(409, "NamespaceNotEmptyException", message)


def table_exists(namespace: str, name: str) -> ProtocolError:
    return ProtocolError(409, "AlreadyExistsException", f"Table already exists: {namespace}.{name}")


def commit_failed(message: str) -> ProtocolError:
    """The client's state of a table is not the newest: it may load the table and try again."""
    return ProtocolError(409, "CommitFailedException", message)
