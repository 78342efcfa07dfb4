"""What a benchmark's child process answers: a request a line on stdin, an answer a line on stdout, both JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import orjson

AnswerRequest = Callable[[dict[str, Any]], dict[str, Any]]
"""Answers a request."""


def answer_requests(prepare: Callable[[dict[str, Any]], tuple[str, AnswerRequest]]) -> None:
    """Answers until stdin ends. `prepare` gets the first request; it returns the `version` that answers it, and what
    answers the further ones. A failure is an answer with `error`, and the next request is answered nevertheless."""
    # Output of the engines must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    prepared: AnswerRequest | None = None
    for line in sys.stdin.buffer:
        request: dict[str, Any] = orjson.loads(line)
        try:
            if prepared is None:
                version, prepared = prepare(request)
                answer: dict[str, Any] = {"version": version}
            else:
                answer = prepared(request)
        except Exception as error:  # noqa: BLE001 - the answer to whoever asked; what an engine raises is its own affair
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(orjson.dumps(answer) + b"\n")
