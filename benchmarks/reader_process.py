"""The process in which one engine reads: a request per line on stdin, an answer per line on stdout, both JSON.

The first request names the `engine`, with `dsn`, `warehouse` and `log`; its answer has the engine's `version`. Each
further one has `location`, `snapshot` and, for a look-up, `key`; its answer has `seconds` and `result`. A failure is an
answer with `error`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from benchmarks import engines


def main() -> None:
    # Output of the engines must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    engine: engines.Engine | None = None
    for line in sys.stdin.buffer:
        request: dict[str, Any] = orjson.loads(line)
        try:
            if engine is None:
                engine = _started(request)
                answer: dict[str, Any] = {"version": engine.version}
            else:
                answer = _read(engine, request)
        except Exception as error:  # noqa: BLE001 - the answer to whoever asked; what an engine raises is its own affair
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(orjson.dumps(answer) + b"\n")


def _started(request: dict[str, Any]) -> engines.Engine:
    name = request["engine"]
    if name == "spark":
        return engines.spark(request["dsn"], request["warehouse"], Path(request["log"]))
    if name == "duckdb":
        return engines.duckdb()
    if name == "pyiceberg":
        return engines.PyIceberg()
    return engines.clickhouse(request["warehouse"])


def _read(engine: engines.Engine, request: dict[str, Any]) -> dict[str, Any]:
    location, snapshot, key = request["location"], request["snapshot"], request.get("key")
    began = time.perf_counter()
    if key is not None:
        row = engine.point(location, snapshot, key)
        return {"seconds": time.perf_counter() - began, "result": row}
    scanned = engine.scan(location, snapshot)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "result": engine.checks(scanned)}


if __name__ == "__main__":
    main()
