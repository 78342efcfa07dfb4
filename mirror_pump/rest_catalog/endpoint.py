"""What an endpoint of the catalog is: a path of the protocol, what it reads of a request, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel
from starlette.responses import Response

from mirror_pump.rest_catalog.catalog_requests import CatalogRequest

Answering = TypeVar("Answering")
"""The class whose methods answer."""


@dataclass(frozen=True)
class Endpoint(Generic[Answering]):
    """A path of the protocol's document, and who answers it."""

    method: str
    path: str
    answer: Callable[[Answering, CatalogRequest], Response]
    query: tuple[str, ...] = ()
    """Query parameters that it reads. It does not get any others."""
    headers: tuple[str, ...] = ()
    """Headers, likewise."""
    takes: type[BaseModel] | None = None
    """The body of a request."""
    status: int | None = 200
    """Of the answer that was asked for; None if there is never one."""
    gives: type[BaseModel] | None = None
    """The body of that answer."""
    refuses: tuple[int, ...] = (404,)
    """Statuses of errors, besides those that any request may get."""

    @property
    def name(self) -> str:
        """As in the list that clients get."""
        return f"{self.method} {self.path}"

    def match(self, method: str, segments: Sequence[bytes]) -> dict[str, str] | None:
        """The variable parts of a path that fits; None if it does not."""
        wanted = self.path.strip("/").split("/")
        if method != self.method or len(wanted) != len(segments):
            return None
        found = {}
        for name, given in zip(wanted, segments, strict=True):
            text = unquote_to_bytes(given).decode("utf-8", "replace")
            if name.startswith("{"):
                found[name.strip("{}")] = text
            elif name != text:
                return None
        return found
