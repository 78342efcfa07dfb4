"""What differs when tasks run in executors on other machines instead of in this one: `--master spark://...`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from mirror_pump.engine.spark_runtime.executor_packages import archives
from mirror_pump.errors import UsageError
from mirror_pump.lake.storage import local_path
from mirror_pump.runtime.file_systems import MOUNTS, file_system_type

_SHARED = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3", "wekafs"}
)
"""Types of file systems that several machines can mount at once. Those of FUSE (`fuse.*`) may be shared as well."""


def is_cluster(master: str) -> bool:
    """Whether tasks run in executors that may be on other machines."""
    return not master.startswith("local")


def executor_python() -> str:
    """The Python that executors run: PYSPARK_PYTHON if the user has set it, else one of this version in their PATH. The
    packages that it gets hold compiled modules, which fit one minor version."""
    return os.environ.get("PYSPARK_PYTHON") or f"python{sys.version_info[0]}.{sys.version_info[1]}"


def executor_conf() -> dict[str, str]:
    """Spark settings by which executors get the program and its packages. Raises UsageError if it cannot be packed."""
    packed = archives()
    return {
        "spark.archives": ",".join(f"{path}#{name}" for name, path in packed.items()),
        "spark.executorEnv.PYTHONPATH": ":".join(packed),
    }


def check_cluster(master: str, dsn: str, warehouse: str) -> None:
    """Raises UsageError if executors of this master could not reach the database or the warehouse. Does nothing for a
    local master."""
    if not is_cluster(master):
        return
    refuse_local_disk(master, warehouse)
    _refuse_socket(master, dsn)


def refuse_local_disk(master: str, warehouse: str, mounts: Path = MOUNTS) -> None:
    """Raises UsageError if the warehouse is a directory on a disk of this machine: executors elsewhere would write
    files that no other machine sees. `mounts` lists the mounted file systems (proc_pid_mountinfo(5))."""
    path = local_path(warehouse)
    if path is None:
        return
    kind = file_system_type(path, mounts)
    if kind in _SHARED or kind.startswith("fuse."):
        return
    raise UsageError(
        f"the warehouse {warehouse} is on a disk of this machine ({kind}), and executors of {master} would write to"
        " theirs",
        "use a warehouse in an object store (s3://, gs://, abfss://), or on a file system that all machines mount at"
        " the same path (NFS, CephFS), or --master local[*]",
    )


def _refuse_socket(master: str, dsn: str) -> None:
    try:
        given = conninfo_to_dict(dsn)
    except ProgrammingError:
        # The connection itself reports that better.
        return
    defaults = {option.keyword.decode(): option.val for option in pq.Conninfo.get_defaults()}
    if given.get("service") or defaults.get("service"):
        # Its host is known only to libpq.
        return
    host = given.get("hostaddr") or given.get("host") or (defaults.get("host") or b"").decode()
    names = str(host).split(",")
    if any(not name or name.startswith(("/", "@")) for name in names):
        raise UsageError(
            f"the DSN names a Unix socket, and executors of {master} reach the database by TCP only",
            "give a host name or address in the DSN that all machines of the cluster can connect to",
        )
