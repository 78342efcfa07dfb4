"""The search_path of each connection that the program opens, from its startup packet on.

Under the role's own path, names in our statements would find what others create in one of its schemas, such as a
function whose parameters match better than those of PostgreSQL's own. It would run with our rights. `pg_temp` is named,
and last, since PostgreSQL otherwise looks for relations and types there first. What a user names without a schema is
resolved by mirror_pump/source/relations/own_path.py.
"""

from sql.mirror_names import SCHEMA, of_mirror

PINNED_PATH = "pg_catalog,pg_temp"


def catalog_path(mirror: str | None) -> str:
    """For clients of Iceberg's JDBC catalog of this mirror, which name its tables without a schema. Only the owner of
    the catalog's schema can create objects there."""
    return of_mirror(f"pg_catalog,{SCHEMA},pg_temp", mirror)
