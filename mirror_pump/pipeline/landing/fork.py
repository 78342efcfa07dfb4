"""Lets Spark rewrite a table on a fork of it: a pointer of its own, which no other writer moves.

Iceberg's commit is optimistic. On the table itself it would race with a pump that commits several times a second, and
the slower one would starve: Spark takes seconds, as it reads all commits since the rewrite began. On the fork it
commits at once. What it did lands on the table in one short commit of this process
(mirror_pump.pipeline.publish.landing).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from psycopg import Error

from mirror_pump.engine.spark_runtime.session import FORKS
from mirror_pump.lake.commit.catalog import delete_pointer, insert_pointer, load_pointer
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import discard
from mirror_pump.model import TableName
from mirror_pump.source.connect import PgConnection, source_errors


@dataclass(frozen=True)
class Fork:
    """A fork of a table, as long as it exists."""

    connection: PgConnection
    lake_name: TableName
    base: LakeTable

    def load(self) -> LakeTable:
        """Its present state. Raises LakeError and SourceError."""
        with source_errors("reading a fork"):
            location = load_pointer(self.connection, self.lake_name.schema, self.lake_name.name, FORKS)
        return LakeTable.load(location or self.base.metadata_location, self.base.storage)


@contextmanager
def forked(connection: PgConnection, lake_name: TableName, base: LakeTable) -> Iterator[Fork]:
    """A fork that begins as `base`. The caller holds the table's lock. At the end its pointer is removed, and so are
    the metadata and the manifests that were written for it. Of a process that dies, they are left to the next sweep."""
    schema, name = lake_name.schema, lake_name.name
    with source_errors("forking a table"), connection.transaction():
        # That of a maintainer that died.
        delete_pointer(connection, schema, name, FORKS)
        insert_pointer(connection, schema, name, base.metadata_location, FORKS)
    fork = Fork(connection, lake_name, base)
    state = base
    try:
        yield fork
        state = fork.load()
    finally:
        with suppress(Error):
            delete_pointer(connection, schema, name, FORKS)
        if state.metadata_location != base.metadata_location:
            discard(_own_files(state, base), base.storage)


def _own_files(state: LakeTable, base: LakeTable) -> list[str]:
    """The metadata of the fork's own commits, unless the table's."""
    base_manifests = {manifest.path for manifest in base.manifests}
    lists = {snapshot.manifest_list for snapshot in base.metadata.snapshots}
    base_locations = {base.metadata_location, *base.metadata.former_locations}
    return [
        *(path for path in (state.metadata_location, *state.metadata.former_locations) if path not in base_locations),
        *(snapshot.manifest_list for snapshot in state.metadata.snapshots if snapshot.manifest_list not in lists),
        *(manifest.path for manifest in state.manifests if manifest.path not in base_manifests),
    ]
