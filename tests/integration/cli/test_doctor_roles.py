"""`mirror-pump doctor` knows admin, pump and reader. What each lacks it has once the remedy was pasted."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from mirror_pump.ops.doctor.catalog import TABLES
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome
from mirror_pump.ops.doctor.examination import examine
from mirror_pump.ops.doctor.rights import EVENT_TRIGGERS, RIGHTS
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.retention_table import at_once
from tests.support.roles import Roles, roles_of

pytestmark = [pytest.mark.empty_database, pytest.mark.unverified("no pump runs, so that nothing is mirrored")]


@pytest.fixture
def roles(database: Database) -> Iterator[Roles]:
    with roles_of(database) as made:
        made.execute(
            made.master, "GRANT CREATE ON SCHEMA public TO {app}, {archive}", "GRANT {app}, {archive} TO {admin}"
        )
        made.execute(made.app, "CREATE TABLE public.orders (id int PRIMARY KEY, v text)")
        made.execute(
            made.archive,
            "CREATE TABLE public.events (at bigint PRIMARY KEY) PARTITION BY RANGE (at)",
            "CREATE TABLE public.p0 PARTITION OF public.events FOR VALUES FROM (0) TO (100)",
        )
        yield made


def found(check: DoctorCheck, roles: Roles, role: str) -> list[Finding]:
    """What a check finds as a role, without what is well."""
    (examined,) = examine(Settings(dsn=roles.dsn(role)), (check,)).checks
    return [finding for finding in examined.findings if finding.outcome is not Outcome.OK]


def well(roles: Roles, role: str) -> str:
    """What the check of rights says of a role that lacks nothing but a sight of others' sessions."""
    (examined,) = examine(Settings(dsn=roles.dsn(role)), (RIGHTS,)).checks
    lacking = [finding for finding in examined.findings if finding.outcome is not Outcome.OK]
    assert all("other roles' sessions are hidden" in finding.message for finding in lacking), lacking
    return "; ".join(finding.message for finding in examined.findings if finding.outcome is Outcome.OK)


def paste(roles: Roles, command: str) -> None:
    """Runs a remedy for the shell."""
    path = os.pathsep.join((str(roles.database.server.binary("psql").parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "ADMIN_DSN": roles.dsn(roles.admin)}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_role_and_what_it_lacks(roles: Roles, run: RunCommand, warehouse: str, slot: str) -> None:
    # Before there is a mirror: who runs `init` becomes the admin.
    lacking = found(RIGHTS, roles, roles.admin)
    assert ["may not stream" in lacking[0].message, "create neither" in lacking[1].message] == [True, True]
    roles.grant(roles.master)
    assert "`init` makes it the admin" in well(roles, roles.admin)
    settings = Settings(
        dsn=roles.dsn(roles.admin), warehouse=warehouse, slot=slot, publication=slot, storage_fsync=False
    )
    initialise(settings, lambda _: None)
    assert "is the admin, who owns schema modak" in well(roles, roles.admin)

    # Neither pump nor reader yet. The remedies are those of docs/roles.md.
    (stranger,) = found(RIGHTS, roles, roles.pump)
    assert "neither admin, pump nor reader" in stranger.message
    named = re.fullmatch("as .*, for a pump: (.*); for a reader: (.*)", stranger.remedy)
    assert named is not None, stranger
    grant_pump, grant_reader = named.groups()
    assert grant_reader.startswith("mirror-pump reader ")
    paste(roles, grant_pump)
    assert "is a pump, and owns nothing" in well(roles, roles.pump)
    for harm in (
        "REVOKE UPDATE ON modak.mirror_slots FROM {pump}",
        "REVOKE EXECUTE ON FUNCTION modak.seal(bigint, text) FROM {pump}",
        "REVOKE SELECT ON modak.delta FROM {pump}",
    ):
        roles.execute(roles.admin, harm)
        (finding,) = (finding for finding in found(RIGHTS, roles, roles.pump) if finding.outcome is Outcome.FAILED)
        assert re.search(r"is a pump, but lacks (UPDATE|EXECUTE|SELECT) on modak.\w+", finding.message), finding
        paste(roles, finding.remedy)
        well(roles, roles.pump)

    assert "neither admin, pump nor reader" in found(RIGHTS, roles, roles.reader)[0].message
    for harm in ("SELECT 1", "REVOKE DELETE ON modak.read_pins FROM {reader}"):
        roles.execute(roles.admin, harm)
        (finding,) = found(RIGHTS, roles, roles.reader)
        assert f"mirror-pump reader {roles.reader} --dsn" in finding.remedy
        assert run("reader", roles.reader, "--dsn", roles.dsn(roles.admin)).exit_code == 0
        assert "is a reader" in well(roles, roles.reader)
    assert [finding.outcome for finding in found(TABLES, roles, roles.reader)] == [Outcome.SKIPPED]

    # The tables: what the admin needs, and what the pump.
    mirror = Mirror(roles.database, settings, ThreadTaskRunner())
    mirror.register("public.orders")
    mirror.register("public.events", retention=at_once("50"))
    _tables(roles)
    assert f"({roles.app}, {roles.archive}) can run code with the rights of role {roles.pump}" in well(
        roles, roles.pump
    )
    as_pump = [finding.message for finding in found(EVENT_TRIGGERS, roles, roles.pump)]
    assert "tables with heap retention fail where they would have to be copied again" in as_pump[0]


def _tables(roles: Roles) -> None:
    for check, harm, message, remedy in (
        (TABLES, "SELECT 1", "may not read public.orders", "GRANT SELECT ON"),
        (TABLES, "SELECT 1", "may not read public.p0", "GRANT SELECT ON"),
        (
            TABLES,
            "REVOKE {app} FROM {admin} GRANTED BY {master}",
            "owner of schema modak does not own public.orders",
            "GRANT",
        ),
        (TABLES, "ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY", "row security", "ALTER ROLE"),
        (RIGHTS, "SELECT 1", "partitions of public.events cannot leave the heap", "GRANT"),
        (RIGHTS, "REVOKE CREATE ON SCHEMA public FROM {archive}", "cannot be created ahead", "GRANT CREATE"),
    ):
        roles.as_superuser(harm)
        present = found(check, roles, roles.pump)
        (finding,) = (finding for finding in present if message in finding.message)
        assert finding.remedy.startswith(remedy), finding
        roles.as_superuser(finding.remedy)
        assert not any(message in finding.message for finding in found(check, roles, roles.pump))
