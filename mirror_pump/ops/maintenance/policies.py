"""Reads and changes the maintenance policies of mirrored tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirror_pump.errors import TableError
from mirror_pump.model import TableId
from mirror_pump.settings.config import Settings
from mirror_pump.settings.policy import FORMAT_VERSION_KEY, KEYS, Policy, as_json, policy_of
from mirror_pump.settings.policy import show as as_text
from mirror_pump.source.catalog.catalog_slot import default_format_version
from mirror_pump.source.catalog.maintenance import change_policy, read_tables
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.relations import resolve_name


@dataclass(frozen=True)
class PolicyEntry:
    """One key of a table's policy, with its value."""

    key: str
    value: Any
    """The value in force; sizes are bytes."""
    default: Any
    """What it is without an override."""
    shown: str
    is_set: bool
    """True if the table overrides the default."""


def show(settings: Settings, name: str) -> list[PolicyEntry]:
    """Every key of the table's policy. Raises UsageError if a stored value is invalid, TableError if the table is not
    mirrored."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-policy") as connection:
        table_id = _mirrored(connection, settings, name)
        overrides = read_tables(connection, settings.slot, [table_id])[0].policy or {}
        version_entry = _format_version(connection, settings, table_id)
    policy, defaults = policy_of(overrides), Policy()
    entries = [
        PolicyEntry(
            key=key,
            value=as_json(getattr(policy, key)),
            default=as_json(getattr(defaults, key)),
            shown=as_text(getattr(policy, key)),
            is_set=key in overrides,
        )
        for key in KEYS
    ]
    return [*entries, version_entry]


def _format_version(connection: PgConnection, settings: Settings, table_id: TableId) -> PolicyEntry:
    """That of the lake table. The default is that of new tables."""
    default = default_format_version(connection, settings.slot)
    table = load_table(connection, table_id)
    version = default if table is None else table.format_version
    return PolicyEntry(FORMAT_VERSION_KEY, version, default, str(version), is_set=version != default)


def change(settings: Settings, name: str, changes: Mapping[str, Any] | None) -> None:
    """Sets keys of the table's policy. A key whose value is None returns to its default; `changes=None` resets all
    keys. Raises TableError if the table is not mirrored."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-policy") as connection:
        table_id = _mirrored(connection, settings, name)
        change_policy(connection, table_id, dict.fromkeys(KEYS) if changes is None else changes)


def _mirrored(connection: PgConnection, settings: Settings, name: str) -> TableId:
    table_id = resolve_name(connection, name)[1]
    if not read_tables(connection, settings.slot, [table_id]):
        raise TableError(f"{name} is not mirrored", "`mirror-pump status` lists the tables that are.")
    return table_id
