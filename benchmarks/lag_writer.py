"""The process that writes the lag benchmark's changes at a steady pace, and records when and where each was committed.

Reads its request as JSON from stdin: `dsn`, `rows`, `per_second` (transactions of ten changes), `first` (number of the
first), `file`, `function` (makes the changes from a number and `rows`). Writes a RECORD for each transaction: the
time.monotonic() at which COMMIT had returned, and a WAL position that the frontier has to pass. Runs until SIGTERM.
"""

from __future__ import annotations

import signal
import struct
import sys
import time
from pathlib import Path

import orjson
import psycopg

RECORD = struct.Struct("=dq")


def main() -> None:
    request = orjson.loads(sys.stdin.buffer.read())
    interval = 1.0 / request["per_second"]
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    number = request["first"]
    with (
        psycopg.connect(request["dsn"], autocommit=True) as connection,
        Path(request["file"]).open("wb", buffering=0) as file,
    ):
        due = time.monotonic()
        while not stopped:
            # One message: the position is read right after COMMIT, before the client could have sent anything else.
            cursor = connection.execute(
                f"BEGIN; SELECT {request['function']}({number}, {request['rows']}); COMMIT;"
                " SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint".encode()
            )
            committed = time.monotonic()
            while cursor.nextset():
                pass
            row = cursor.fetchone()
            assert row is not None
            file.write(RECORD.pack(committed, row[0]))
            number += 1
            # A missed pace is caught up with, like a queue of waiting clients.
            due += interval
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
