"""A catalog that speaks Iceberg's REST protocol as a follower's catalog.

What it answers is another program's: of its configuration only names that choose no code, no credentials and no other
login are taken, and its tables get no files to open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pydantic import Field
from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, TableIdentifier
from pyiceberg.typedef import IcebergBaseModel

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.follow.answer_limits import AnswerLimits
from mirror_pump.ops.follow.follower_tables import TableMove

_REFUSALS = (400, 403, 404, 405, 409, 422, 501)
"""Statuses of a commit that is not made, and will not be if it is sent again."""
_FROM_SERVER = ("uri", "prefix", "warehouse", "namespace-separator", "rest-page-size")
"""Properties that a catalog may set. pyiceberg would take any, and imports what `py-io-impl` or `auth` names."""
_LONGEST_TEXT = 500
"""Characters of an answer that are told."""
_TRANSACTION = "transactions/commit"
_COMMITS_TOGETHER = Endpoint(http_method=HttpMethod.POST, path=f"/v1/{{prefix}}/{_TRANSACTION}")


class _JointCommit(IcebergBaseModel):
    """The body of a commit to several tables."""

    table_changes: tuple[CommitTableRequest, ...] = Field(alias="table-changes")


class FollowingRest(RestCatalog):
    """pyiceberg's client, within limits. Not by `load_catalog`, which would mix in what a file of the user says of a
    catalog of this name."""

    momentary: tuple[type[Exception], ...] = ()
    rewrites_namespaces = False

    def __init__(self, name: str, properties: Mapping[str, str], _: StorageOptions, limits: AnswerLimits) -> None:
        self._limits = limits
        super().__init__(name, **properties)

    @property
    def moves_together(self) -> bool:
        """Whether it takes changes of several tables in one commit."""
        return _COMMITS_TOGETHER in self._supported_endpoints

    def takes(self, _: TableMove) -> bool:
        """Whether it can make this move."""
        return True

    def move(self, move: TableMove) -> None:
        """Moves one table."""
        self.commit_table(move.table, move.requirements, move.updates)

    def commit_together(self, moves: Sequence[TableMove]) -> bool:
        """Moves all tables at once. False if it refuses that: none has moved. pyiceberg has no call for it, and all of
        its parts."""
        body = _JointCommit.model_validate({"table_changes": tuple(map(_request, moves))}).model_dump_json().encode()
        response = self._session.post(self.url(_TRANSACTION), data=body)
        if not response.ok and response.status_code not in _REFUSALS:
            raise CommitStateUnknownException(f"{response.status_code} {response.text}"[:_LONGEST_TEXT])
        return bool(response.ok)

    def _config_headers(self, session: Any) -> None:
        # The first thing that pyiceberg does with a session; the next may be to get a token.
        super()._config_headers(session)
        adapter_of = session.get_adapter
        session.get_adapter = lambda url: SimpleNamespace(send=self._limits.within(adapter_of(url)))

    def _fetch_config(self) -> None:
        given = dict(self.properties)
        super()._fetch_config()
        answered = {name: self.properties[name] for name in _FROM_SERVER if name in self.properties}
        self.properties = {**given, **answered}

    def _load_file_io(self, *_: object, **__: object) -> Any:
        # The mirror's files are read by the mirror's own settings.
        return None


def _request(move: TableMove) -> CommitTableRequest:
    *namespace, name = move.table.name()
    identifier = TableIdentifier.model_validate({"namespace": namespace, "name": name})
    return CommitTableRequest(identifier=identifier, requirements=move.requirements, updates=move.updates)
