"""The process in which one engine reads: a request per line on stdin, an answer per line on stdout, both JSON.

The first request names the `engine`, with `dsn`, `warehouse` and `log`; its answer has the engine's `version`. Each
further one has `location`, `snapshot` and, for a look-up, `key`; its answer has `seconds` and `result`. A failure is an
answer with `error`.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import engines
from benchmarks.answering import AnswerRequest, answer_requests


def main() -> None:
    answer_requests(_prepared)


def _prepared(request: dict[str, Any]) -> tuple[str, AnswerRequest]:
    engine = _started(request)
    return engine.version, partial(_read, engine)


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
