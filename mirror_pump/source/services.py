"""Services and operators that run PostgreSQL for others: what tells them, and how things are done there.

No role is a superuser on most, and settings of the server are made elsewhere than by ALTER SYSTEM. A service is added
by an entry here, and a row of docs/services.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class ManagedService:
    """A service or an operator, as far as remedies depend on it."""

    name: str
    signs: tuple[str, ...]
    """Roles, settings and functions of schema pg_catalog, any of which its servers have and no others."""
    place: str
    """Where its users set parameters of the server: completes "set NAME = VALUE ...". """
    creator: str
    """Who may create event triggers there, if anyone may."""
    logical: str = "wal_level = logical"
    """Its own name of wal_level = logical."""
    stream_role: str | None = None
    """The role whose members may stream changes; None if the attribute REPLICATION is given."""


_RDS_SETTING, _RDS_ROLE, _RDS_CREATOR = "rds.logical_replication = 1", "rds_replication", "a member of rds_superuser"

SERVICES = (
    ManagedService(
        "Amazon Aurora", ("aurora_version",), "in the DB cluster parameter group of Amazon Aurora", _RDS_CREATOR,
        logical=_RDS_SETTING, stream_role=_RDS_ROLE,
    ),
    ManagedService(
        "Amazon RDS", (_RDS_ROLE, "rds_superuser"), "in the DB parameter group of Amazon RDS", _RDS_CREATOR,
        logical=_RDS_SETTING, stream_role=_RDS_ROLE,
    ),
    ManagedService(
        "AlloyDB", ("alloydbsuperuser", "alloydb.logical_decoding"), "in the database flags of the AlloyDB instance",
        "a member of alloydbsuperuser", logical="alloydb.logical_decoding = on",
    ),
    ManagedService(
        "Google Cloud SQL", ("cloudsqlsuperuser",), "in the database flags of the Google Cloud SQL instance",
        "a member of cloudsqlsuperuser", logical="cloudsql.logical_decoding = on",
    ),
    ManagedService(
        "Azure Database for PostgreSQL", ("azure_pg_admin",),
        "in the server parameters of Azure Database for PostgreSQL", "a member of azure_pg_admin",
    ),
    ManagedService(
        "Supabase", ("supabase_admin",), "in the Postgres configuration of the Supabase project", "role postgres"
    ),
    ManagedService(
        "Neon", ("neon_superuser",), "in the settings of the Neon project",
        "a member of neon_superuser",
    ),
    ManagedService(
        "CloudNativePG", ("cnpg.config_sha256",), "in .spec.postgresql.parameters of the CloudNativePG cluster",
        "a superuser",
    ),
)  # fmt: skip
"""The first one with a sign counts: Aurora's servers have the signs of RDS, too."""

SIGNS = [sign for service in SERVICES for sign in service.signs]


def service_of(signs: Collection[str]) -> ManagedService | None:
    """The service whose signs a server has; None if it has none."""
    return next((service for service in SERVICES if not set(signs).isdisjoint(service.signs)), None)
