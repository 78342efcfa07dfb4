"""Documents and errors of Iceberg's REST catalog protocol (its OpenAPI document is rest-catalog-open-api.yaml)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class _Document(BaseModel):
    """A document with names as the protocol has them."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)


class CatalogConfig(_Document):
    """Answer of `GET /v1/config`."""

    defaults: dict[str, str]
    overrides: dict[str, str]
    endpoints: list[str]


class TableReference(_Document):
    """A table's name: `TableIdentifier` in the protocol."""

    namespace: list[str]
    name: str


class NamespaceList(_Document):
    """Answer of `GET .../namespaces`."""

    namespaces: list[list[str]]
    next_page_token: str | None = Field(default=None, serialization_alias="next-page-token")


class Namespace(_Document):
    """Answer of `GET .../namespaces/{namespace}`, and body of `POST .../namespaces`."""

    namespace: list[str]
    properties: dict[str, str] | None = None
    """None if the catalog keeps none: an empty object would say that it could."""


class NamespaceChange(_Document):
    """Body of `POST .../namespaces/{namespace}/properties`."""

    removals: list[str] = []
    updates: dict[str, str] = {}


class ChangedProperties(_Document):
    """Answer of it: names of properties."""

    updated: list[str]
    removed: list[str]
    missing: list[str]
    """Those that were to be removed, and were not there."""


class TableList(_Document):
    """Answer of `GET .../tables`, and of `GET .../views`."""

    identifiers: list[TableReference]
    next_page_token: str | None = Field(default=None, serialization_alias="next-page-token")


class LoadTableAnswer(_Document):
    """Answer of `GET .../tables/{table}`, and of `POST .../tables`."""

    metadata: dict[str, JsonValue]
    """The table's metadata file."""
    metadata_location: str | None = Field(default=None, serialization_alias="metadata-location")
    """None for a table that is prepared, but not there yet."""
    config: dict[str, str] = {}
    """What else is to be known to read it."""


class CommitTableAnswer(_Document):
    """Answer of `POST .../tables/{table}`."""

    metadata: dict[str, JsonValue]
    metadata_location: str = Field(serialization_alias="metadata-location")


class TransactionPart(_Document):
    """A part of TransactionRequest, which is a `CommitTableRequest` in the protocol."""

    identifier: TableReference
    requirements: list[JsonValue] = []
    updates: list[JsonValue] = []


class TransactionRequest(_Document):
    """Body of `POST .../transactions/commit`."""

    table_changes: list[TransactionPart] = Field(validation_alias="table-changes")


class RenameTableRequest(_Document):
    """Body of `POST .../tables/rename`."""

    source: TableReference
    destination: TableReference


class RegisterTableRequest(_Document):
    """Body of `POST .../namespaces/{namespace}/register`."""

    name: str
    metadata_location: str = Field(validation_alias="metadata-location")
    overwrite: bool | None = None


class ErrorModel(_Document):
    """What happened, and what to do."""

    message: str
    type: str
    code: int


class ErrorResponse(_Document):
    """The body of every answer that is an error."""

    error: ErrorModel


class NoTokens(_Document):
    """Answer to a client that asks for a token, in the form of OAuth (RFC 6749, 5.2)."""

    error: str = "unsupported_grant_type"
    error_description: str = (
        "this catalog gives no tokens: configure the token itself as `token`, or the issuer's token endpoint as"
        " `oauth2-server-uri`"
    )


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
    """The answer to a request that can only succeed if the client changes it."""
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


def unsupported(message: str) -> ProtocolError:
    return ProtocolError(501, "UnsupportedOperationException", message)


def commit_failed(message: str) -> ProtocolError:
    """The client's state of a table is not the newest: it may load the table and try again."""
    return ProtocolError(409, "CommitFailedException", message)
