"""Adds followers, and removes them so that nothing stays in their catalogs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any
from urllib.parse import urlsplit

import psycopg

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import UsageError
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.follower_round import FollowerRound
from mirror_pump.ops.follow.follower_tables import FOLLOWER, FRONTIER
from mirror_pump.ops.follow.following import PATIENCE, locked_follower
from mirror_pump.settings.config import Settings
from mirror_pump.settings.credentials import check_reference, is_catalog_property, is_secret, options_of
from mirror_pump.settings.storage_profiles import is_profile_name
from mirror_pump.source.catalog.followers import (
    Follower,
    FollowerKind,
    Identifier,
    check_pattern,
    delete_follower,
    end_follower,
    insert_follower,
    one_follower,
    tables_of,
)
from mirror_pump.source.catalog.pins import PinnedSet, PinRelation, leased_snapshots
from mirror_pump.source.connect import PgConnection, connect, source_errors

_ADDRESSES = {
    FollowerKind.REST: (("http", "https"), "https://catalog.example.com/api/catalog"),
    FollowerKind.HIVE: (("thrift",), "thrift://metastore.example.com:9083"),
}
"""Schemes of the addresses of these kinds, and an example. Glue is where the region says."""

_GLUE = re.compile(r"glue\.(?:endpoint|id|skip-archive)|(?:glue|client|s3)\.(?:region|profile-name)")


def add_follower(
    settings: Settings,
    name: str,
    kind: FollowerKind,
    uri: str | None,
    options: Sequence[str],
    credentials: str | None,
    namespace: str,
    table: str,
) -> bool:
    """Adds a follower, once its catalog has answered. Returns whether it takes several tables in one commit. Raises
    UsageError, without repeating a secret, FollowerError, SourceError."""
    if not is_profile_name(name):
        raise UsageError(f"{name!r} is no name for a follower", "use 1 to 63 of A-Z, a-z, 0-9, _ and -")
    check_reference(credentials, "polaris")
    patterns = {
        "namespace_pattern": check_pattern("--namespace", namespace),
        "table_pattern": check_pattern("--table", table),
    }
    columns = {
        "kind": kind.value,
        "options": _options(kind, uri, options),
        "credential_ref": credentials,
        **patterns,
    }
    if kind.folds_names and "." in namespace:
        raise UsageError(
            f"--namespace {namespace} has two levels, and in {kind.value} databases have none", "give one name"
        )
    storage = lake_storage(settings)
    with _connected(settings) as connection:
        with source_errors("adding the follower"), connection.transaction(force_rollback=True):
            _insert(connection, settings.slot, name, columns)
            follower = one_follower(connection, settings.slot, name)
        # If it does not answer, nothing is added. No transaction waits for that.
        with closing(FollowerCatalog(follower, storage)) as catalog:
            moves_together = catalog.moves_together
        with source_errors("adding the follower"):
            _insert(connection, settings.slot, name, columns)
    return moves_together


def _insert(connection: PgConnection, slot: str, name: str, columns: Mapping[str, Any]) -> None:
    try:
        insert_follower(connection, slot, name, **columns)
    except psycopg.errors.UniqueViolation:
        raise UsageError(
            f"there is a follower {name} already", f"`mirror-pump follow remove {name}`, or choose another name"
        ) from None


def _connected(settings: Settings) -> PgConnection:
    return connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-follow")


def _is_glue_option(name: str) -> bool:
    # Its client is made of these alone. Those of keys are refused as secrets.
    return _GLUE.fullmatch(name) is not None or (is_catalog_property(name) and is_secret(name))


def _options(kind: FollowerKind, uri: str | None, arguments: Sequence[str]) -> dict[str, str]:
    if kind is FollowerKind.GLUE:
        options = options_of(arguments, _is_glue_option, "an option of Glue, such as glue.region=eu-west-1")
    else:
        options = options_of(arguments, is_catalog_property, "a property of a catalog, such as warehouse=shop")
    if uri is None:
        return options
    schemes, example = _ADDRESSES[kind]
    address = urlsplit(uri)
    if address.scheme not in schemes or not address.hostname or address.username or address.query or "," in uri:
        raise UsageError(
            f"--{kind.value} takes the address of a catalog, such as {example}",
            "give no user, password or token in it: put them into the credentials, and name these by --credentials",
        )
    return {"uri": uri, **options}


def remove_follower(settings: Settings, name: str, *, forget: bool) -> list[str]:
    """Removes a follower, and its tables and namespaces from its catalog. Returns the names of the tables that are left
    there. `forget`: leaves them all, and does not ask the catalog. Raises UsageError, SourceError, and FollowerError if
    it does not answer, or if another program has committed to one of the tables: until that is mended, nothing follows
    there, and the tables that were removed stay so."""
    with _connected(settings) as connection:
        follower = one_follower(connection, settings.slot, name)
        end_follower(connection, follower)
        if forget:
            # A round that is under way, maybe for ever, records and pins nothing any more.
            left = [".".join(table.identifier) for table in tables_of(connection, follower)]
            _forget(connection, follower)
            return left
    with locked_follower(settings, name, PATIENCE) as (connection, follower):
        storage = lake_storage(settings)
        with closing(FollowerCatalog(follower, storage)) as catalog:
            namespaces = {table.identifier[:-1] for table in tables_of(connection, follower)}
            leaving = FollowerRound(connection, follower, catalog, storage)
            for table in tables_of(connection, follower):
                leaving.drop(table)
            for namespace in sorted(namespaces):
                _leave(catalog, follower, namespace)
        _forget(connection, follower)
    return []


def _leave(catalog: FollowerCatalog, follower: Follower, namespace: Identifier) -> None:
    """Drops a namespace that was made for the follower and is empty, and those around it."""
    for end in range(len(namespace), 0, -1):
        properties = catalog.namespace_properties(namespace[:end])
        if properties is None:
            continue
        if properties.get(FOLLOWER) == follower.follower_id and catalog.drop_namespace(namespace[:end]):
            continue
        if FRONTIER in properties:
            catalog.remove_namespace_property(namespace[:end], FRONTIER)


def _forget(connection: PgConnection, follower: Follower) -> None:
    with source_errors("releasing a follower's pins"):
        # The pump's, too.
        pins = leased_snapshots(connection, follower.slot, follower.lease, of_all_roles=True)
    PinnedSet(lambda: nullcontext(connection), PinRelation.TABLES, 0.0, pins).drop()
    delete_follower(connection, follower)
