"""A Hive metastore as a follower's catalog. It needs thrift, which the extra `hive` brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import EnvironmentContext, InvalidOperationException, UnlockRequest
from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from pyiceberg.catalog.hive import (
    HIVE2_COMPATIBLE,
    HIVE2_COMPATIBLE_DEFAULT,
    HiveCatalog,
    _construct_hive_storage_descriptor,
    _HiveClient,
)
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError, WaitingForLockException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.utils.properties import property_as_bool
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport import TSocket, TTransport

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.follow.answer_limits import LARGEST_ANSWER, READ_AT_ONCE, AnswerLimits
from mirror_pump.ops.follow.follower_tables import TableMove
from mirror_pump.ops.follow.metastore_tables import LakeMetadata, MetastoreTables

_UNLOCKING = 5.0
"""Seconds."""
_LONGEST_CONTAINER = 100_000
"""Elements of a list or map: an empty one takes a byte of an answer, and a hundred here."""


class FollowingHive(MetastoreTables, HiveCatalog):
    """pyiceberg's client, within limits. A table moves under its lock, and where the metastore compares it (2.3.10,
    4.0) on the condition of its metadata file, too: engines need not take locks."""

    momentary = (TTransport.TTransportException,)
    refusals = (*MetastoreTables.refusals, InvalidOperationException)

    def __init__(self, name: str, properties: Mapping[str, str], storage: StorageOptions, limits: AnswerLimits) -> None:
        self.files = LakeMetadata(storage)
        super().__init__(name, **properties)
        self._client = _LimitedHive(self._client, limits)

    def takes(self, move: TableMove) -> bool:
        """A metastore refuses a column of another type where a former one was, so any but the last that is dropped."""
        compatible = property_as_bool(self.properties, HIVE2_COMPATIBLE, HIVE2_COMPATIBLE_DEFAULT)

        def types(metadata: TableMetadata) -> list[str]:
            columns = _construct_hive_storage_descriptor(metadata.schema(), None, compatible).cols
            return [column.type for column in columns]

        before, after = types(move.table.metadata), types(move.shown.metadata)
        return all(one == another for one, another in zip(before, after, strict=False))

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Raises ServiceUnavailableError if another program has the table's lock, too."""
        try:
            return super().commit_table(table, requirements, updates)
        except CommitFailedException as error:
            if isinstance(error.__cause__, WaitingForLockException):
                raise ServiceUnavailableError(str(error)) from None
            raise


class _LimitedHive(_HiveClient):
    """Connections of a client of pyiceberg's, within limits."""

    def __init__(self, client: _HiveClient, limits: AnswerLimits) -> None:
        self._limits = limits
        super().__init__(client._uri, None, client._kerberos_auth, client._kerberos_service_name)
        self._ugi = client._ugi

    def _init_thrift_transport(self) -> Any:
        address = urlsplit(self._uri)
        connected = _LimitedSocket(address.hostname, address.port)
        connected.limits = self._limits
        if self._kerberos_auth:
            return TTransport.TSaslClientTransport(
                connected, host=address.hostname, service=self._kerberos_service_name
            )
        return TTransport.TBufferedTransport(connected)

    def _client(self) -> Client:
        protocol = TBinaryProtocol(
            self._transport, string_length_limit=LARGEST_ANSWER, container_length_limit=_LONGEST_CONTAINER
        )
        client = _ComparingClient(protocol)
        client.limits = self._limits
        if self._ugi:
            client.set_ugi(*self._ugi)
        return client


class _LimitedSocket(TSocket.TSocket):  # type: ignore[misc]
    """A socket of thrift's whose reads and writes wait no longer than what is left of the call."""

    limits: AnswerLimits

    def open(self) -> None:
        self.setTimeout(self.limits.seconds() * 1000)
        super().open()

    def read(self, size: int) -> bytes:
        self.setTimeout(self.limits.seconds() * 1000)
        # A length that the other side names is not yet there.
        content: bytes = super().read(min(size, READ_AT_ONCE))
        self.limits.take(len(content))
        return content

    def write(self, content: bytes) -> None:
        self.setTimeout(self.limits.seconds() * 1000)
        super().write(content)


class _ComparingClient(Client):  # type: ignore[misc]
    """Has the metastore compare a table's metadata file with the former one while it alters the table."""

    limits: AnswerLimits

    def unlock(self, rqst: UnlockRequest) -> None:
        """A lock that is left behind stops all programs, so it has seconds of its own."""
        self.limits.extend(_UNLOCKING)
        super().unlock(rqst)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: EnvironmentContext
    ) -> None:
        environment_context.properties |= {
            "expected_parameter_key": METADATA_LOCATION,
            "expected_parameter_value": new_tbl.parameters[PREVIOUS_METADATA_LOCATION],
        }
        super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
