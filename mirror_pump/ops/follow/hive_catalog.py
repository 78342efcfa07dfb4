"""A Hive metastore as a follower's catalog. It needs thrift, which the extra `hive` brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import EnvironmentContext
from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError, WaitingForLockException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport import TSocket, TTransport

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.follow.answer_limits import READ_AT_ONCE, AnswerLimits
from mirror_pump.ops.follow.metastore_tables import LakeMetadata, MetastoreTables


class FollowingHive(MetastoreTables, HiveCatalog):
    """pyiceberg's client, within limits. A table moves under its lock, and where the metastore compares it (2.3.10,
    4.0) on the condition of its metadata file, too: engines need not take locks."""

    momentary = (TTransport.TTransportException,)

    def __init__(self, name: str, properties: Mapping[str, str], storage: StorageOptions, limits: AnswerLimits) -> None:
        self.files = LakeMetadata(storage)
        super().__init__(name, **properties)
        self._client = _LimitedHive(self._client, limits)

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
        client = _ComparingClient(TBinaryProtocol(self._transport))
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

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: EnvironmentContext
    ) -> None:
        environment_context.properties |= {
            "expected_parameter_key": METADATA_LOCATION,
            "expected_parameter_value": new_tbl.parameters[PREVIOUS_METADATA_LOCATION],
        }
        super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, environment_context)
