"""What a cluster needs, and what it is refused for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pump.engine.spark_runtime.cluster import (
    check_cluster,
    executor_conf,
    executor_python,
    is_cluster,
    refuse_local_disk,
)
from mirror_pump.engine.spark_runtime.executor_packages import archives
from mirror_pump.errors import UsageError
from tests.support.node_tasks import ARCHIVES, unpack_archives

_MASTER = "spark://master:7077"
_DSN = "postgresql://pump@db/shop"
_MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:40 / /srv/lake rw,relatime shared:2 - nfs4 server:/lake rw
24 22 0:41 / /srv/with\\040blank rw,relatime - fuse.glusterfs volume rw
25 23 254:1 / /srv/lake/local rw,relatime - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("warehouse", "kind"),
    [
        ("file:///var/lake", "ext4"),
        ("file:///srv/lake/local/shop", "xfs"),
        # A name that only begins like one that is shared.
        ("file:///srv/lakes", "ext4"),
    ],
)
def test_a_warehouse_on_a_disk_of_this_machine_is_refused(warehouse: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTS)
    with pytest.raises(UsageError, match=rf"{warehouse} is on a disk of this machine \({kind}\)") as refused:
        refuse_local_disk(_MASTER, warehouse, mounts)
    assert "s3://" in refused.value.remedy


@pytest.mark.parametrize("warehouse", ["s3://lake/shop", "file:///srv/lake/shop", "file:///srv/with blank/shop"])
def test_shared_storage_is_not_refused(warehouse: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTS)
    refuse_local_disk(_MASTER, warehouse, mounts)


@pytest.mark.parametrize("dsn", ["postgresql:///shop", "host=/run/postgresql dbname=shop", "host=a,/tmp dbname=shop"])
def test_a_unix_socket_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    with pytest.raises(UsageError, match="Unix socket"):
        check_cluster(_MASTER, dsn, "s3://lake/shop")
    monkeypatch.setenv("PGHOST", "db")
    check_cluster(_MASTER, "postgresql:///shop", "s3://lake/shop")


def test_a_local_master_needs_nothing_of_this() -> None:
    check_cluster("local[*]", "postgresql:///shop", "file:///var/lake")
    check_cluster(_MASTER, _DSN, "s3://lake/shop")
    assert not is_cluster("local[4]")
    assert is_cluster(_MASTER)


def test_executors_run_the_users_python_or_one_of_our_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python/bin/python")
    assert executor_python() == "/opt/python/bin/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert executor_python() == f"python{sys.version_info[0]}.{sys.version_info[1]}"


def test_tasks_can_be_imported_from_the_archives_alone(tmp_path: Path) -> None:
    """By a Python without any package, as on a node."""
    packed = archives()
    # They are made once.
    assert archives() == packed
    conf = executor_conf()
    # Nothing else travels with Spark's settings, which everybody who sees its master can read.
    assert conf.keys() == {"spark.archives", "spark.executorEnv.PYTHONPATH"}
    assert conf["spark.executorEnv.PYTHONPATH"] == ":".join(ARCHIVES)
    assert conf["spark.archives"].split(",") == [f"{packed[name]}#{name}" for name in ARCHIVES]
    unpack_archives(tmp_path)
    program = (
        "import sys; before = set(sys.modules)\n"
        "from mirror_pump.engine.spark_runtime.worker_daemon import TASKS\n"
        "for task in TASKS: __import__(task)\n"
        "import adbc_driver_postgresql.dbapi, pyarrow.fs, pyiceberg.io.pyarrow, psycopg, pyspark.worker, sql\n"
        "import mirror_pump.engine.spark_runtime.runner\n"
        "assert sql.queries('copy')\n"
        "for name in ('numpy', 'pyarrow', 'psycopg', 'mirror_pump'): print(sys.modules[name].__file__)\n"
    )
    done = subprocess.run(
        [sys._base_executable, "-s", "-c", program],  # type: ignore[attr-defined]
        env={"PYTHONPATH": ":".join(ARCHIVES), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(tmp_path) for line in done.stdout.splitlines())
