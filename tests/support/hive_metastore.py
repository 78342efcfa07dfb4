"""A Hive metastore, of the jars that Spark has, as a server that tests start."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.catalog.hive import HiveCatalog

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.testing.mirror import await_true
from tests.support.iceberg_rest import free_port
from tests.support.maven_jars import SPARK_JARS

_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic"),
)


_LOCKS = """
CREATE TABLE HIVE_LOCKS (HL_LOCK_EXT_ID bigint NOT NULL, HL_LOCK_INT_ID bigint NOT NULL, HL_TXNID bigint,
  HL_DB varchar(128) NOT NULL, HL_TABLE varchar(128), HL_PARTITION varchar(767), HL_LOCK_STATE char(1) NOT NULL,
  HL_LOCK_TYPE char(1) NOT NULL, HL_LAST_HEARTBEAT bigint NOT NULL, HL_ACQUIRED_AT bigint,
  HL_USER varchar(128) NOT NULL, HL_HOST varchar(128) NOT NULL, HL_HEARTBEAT_COUNT integer,
  HL_AGENT_INFO varchar(128), HL_BLOCKEDBY_EXT_ID bigint,
  HL_BLOCKEDBY_INT_ID bigint, PRIMARY KEY (HL_LOCK_EXT_ID, HL_LOCK_INT_ID));
CREATE TABLE NEXT_LOCK_ID (NL_NEXT bigint NOT NULL);
INSERT INTO NEXT_LOCK_ID VALUES (1);
CREATE TABLE AUX_TABLE (MT_KEY1 varchar(128) NOT NULL, MT_KEY2 bigint NOT NULL, MT_COMMENT varchar(255),
  PRIMARY KEY (MT_KEY1, MT_KEY2));
"""
"""Tables that the metastore does not make by itself, as those of a metastore's own scripts."""


@dataclass(frozen=True)
class HiveMetastore:
    """A metastore of Hive 2.3 in a process of its own."""

    uri: str

    def pyiceberg(self) -> HiveCatalog:
        """pyiceberg as a client of it."""
        return HiveCatalog("metastore", uri=self.uri, **{"hive.hive2-compatible": "true"})

    def answers(self) -> bool:
        """Whether it answers."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", urlsplit(self.uri).port or 0), timeout=60):
            return bool(self.pyiceberg().list_namespaces())
        return False


@contextmanager
def hive_metastore(directory: Path) -> Iterator[HiveMetastore]:
    """A metastore within the block."""
    port = free_port()
    database = f"jdbc:derby:{directory}/metastore;create=true"
    java = (str(find_java_home() / "bin" / "java"), *_JAVA, f"-Djava.io.tmpdir={directory}")
    subprocess.run(
        [*java, f"-Dij.database={database}", "-cp", f"{SPARK_JARS}/*", "org.apache.derby.tools.ij"],
        input=_LOCKS.encode(),
        cwd=directory,
        check=True,
        capture_output=True,
        timeout=120,
    )
    settings = {
        "javax.jdo.option.ConnectionURL": database,
        "hive.metastore.warehouse.dir": (directory / "warehouse").as_uri(),
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        # Spark has no jars for what is used by default.
        "hive.async.log.enabled": "false",
        "datanucleus.connectionPoolingType": "hikaricp",
    }
    command = [
        *java,
        *(option for name in _OPENED for option in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")),
        *("-cp", f"{SPARK_JARS}/*", "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)),
        *(option for name, value in settings.items() for option in ("--hiveconf", f"{name}={value}")),
    ]
    log = directory / "metastore.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        server = HiveMetastore(f"thrift://127.0.0.1:{port}")
        await_true(lambda: process.poll() is not None or server.answers(), 120, f"the metastore answers, see {log}")
        assert process.poll() is None, log.read_text()[-3000:]
        yield server
    finally:
        process.kill()
        process.wait(60)
