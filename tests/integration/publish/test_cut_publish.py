"""A publish whose connection is cut at each of its messages in turn: it lands once, whatever the pump got to know."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.message_proxy import cutting_messages

PUBLISHES = b"m.staged_location AS staged, i.metadata_location AS pointer"
"""Part of the first query of a publish, which is prepared by its text once in each connection (sql/queries/publish.sql,
due_to_go_live)."""


@pytest.mark.parametrize(
    "stride",
    [
        # Coprime to the messages of a statement, so that each kind of them is among those that are lost.
        pytest.param(13, id="some"),
        pytest.param(1, id="every", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_a_publish_that_is_cut_at_each_of_its_messages(database: Database, warehouse: str, stride: int) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, n int)",
        "INSERT INTO u SELECT g, 0 FROM generate_series(1, 20) g",
    )
    steps = Steps()
    with cutting_messages(database.dsn, PUBLISHES) as proxy:
        mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), dsn=proxy.proxied, reconnect_backoff_max=0.01)
        direct = Mirror(database, mirror.settings.model_copy(update={"dsn": database.dsn}), mirror.runner)
        with mirror.pumping(steps):
            direct.register("t", "u")
            direct.await_live("public.t", "public.u")
            for number in count(step=stride):
                cuts = len(proxy.cuts)
                proxy.cut_at(number)
                with database.connect(autocommit=False) as connection:
                    connection.execute("INSERT INTO t VALUES (%s, 'once')", (number,))
                    connection.execute("UPDATE u SET n = n + 1 WHERE id %% 5 = %s", (number % 5,))
                    row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
                    assert row is not None
                await_true(partial(_passed, direct, row[0]), 30, f"published after a cut at message {number}")
                if len(proxy.cuts) == cuts:
                    break
            messages = list(proxy.passed)
            proxy.cut_at(None)
        direct.assert_equal("public.t", "public.u")
        direct.assert_sound()
    assert len(proxy.cuts) >= 8
    assert {"client B", "server Z"} <= set(messages), "whole statements passed"
    errors = [str(error) for error in steps.details(Step.RETRYING, "error")]
    assert all("connection" in error for error in errors), errors


def _passed(mirror: Mirror, position: int) -> bool:
    return mirror.frontier() > position
