"""The life of a mirror without a stream, by roles none of which may stream changes."""

from __future__ import annotations

import pytest

from mirror_pump.ops.doctor.catalog import PUBLICATION
from mirror_pump.ops.doctor.check import Outcome
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.doctor.replication import REPLICATION
from mirror_pump.ops.doctor.rights import RIGHTS
from mirror_pump.ops.doctor.server import SERVER
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.database_catalogs import catalogs
from tests.support.roles import Roles, roles_of


def outcomes(roles: Roles, role: str) -> set[Outcome]:
    """What `doctor` finds of the server and of the role's rights."""
    made = examine(Settings(dsn=roles.dsn(role)), (SERVER, RIGHTS, REPLICATION, PUBLICATION))
    assert made.outcome is not Outcome.FAILED, made
    return {check.outcome for check in made.checks}


@pytest.mark.soak
def test_from_init_to_uninstalling(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    with roles_of(database) as roles:
        before = catalogs(database)
        done = roles.psql(roles.master, "roles.sql", "tiered_only=")
        assert done.returncode == 0, done.stderr
        assert database.rows(
            "SELECT count(*) FROM pg_roles WHERE rolreplication AND rolname = ANY (%s)", ([roles.admin, roles.pump],)
        ) == [(0,)]
        initialise(Settings(dsn=roles.dsn(roles.admin), warehouse=warehouse), lambda _: None)
        roles.grant(roles.admin)
        for role in (roles.admin, roles.pump):
            assert outcomes(roles, role) <= {Outcome.OK, Outcome.WARNING}
        settings = Settings(dsn=roles.dsn(roles.pump), warehouse=warehouse, storage_fsync=False)
        steps = Steps()
        with Mirror(database, settings, tasks).pumping(steps):
            await_true(lambda: steps.count(Step.WITHOUT_STREAM) == 1, 60, "the pump works")
            shown = run("status", "--dsn", roles.dsn(roles.pump))
            assert "no stream: tiered tables only" in shown.stdout, shown.stderr
        waited = run("wait", "--now", "--timeout", "0", "--dsn", roles.dsn(roles.pump))
        assert waited.exit_code == 0, waited.stderr
        removed = roles.psql(roles.admin, "uninstall.sql")
        assert removed.returncode == 0, removed.stderr
        assert roles.psql(roles.master, "roles.sql", "tiered_only=").returncode == 0
        after = catalogs(database)
    different = {table for table in before if before[table] != after[table]}
    # What the script grants outside of the schema stays.
    assert different <= {"pg_authid", "pg_auth_members", "pg_database", "pg_db_role_setting", "pg_shdepend"}
