"""Asks a pump's HTTP port how it is; the image has no curl. Exits with 0 or 1, and prints why.

    probe.py alive     the process answers
    probe.py ready     it streams and is not too far behind, or it waits as a standby

A standby counts as ready: otherwise a rollout of a pump with a standby, or the eviction of a node, would wait for ever
for the standby to stream.
"""

from __future__ import annotations

import http.client
import json
import os
import sys

_TIMEOUT = 4.0
"""Seconds, less than the time that Docker or Kubernetes gives this program."""


def ask(port: int, path: str) -> tuple[int, dict[str, object]]:
    """Status code and document. Raises OSError or ValueError without a valid answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        document = json.loads(response.read())
    except http.client.HTTPException as error:
        raise ValueError(f"no HTTP: {error}") from error
    finally:
        connection.close()
    if not isinstance(document, dict):
        raise ValueError("no document")  # noqa: TRY004 - what arrived is wrong, not what was passed
    return response.status, document


def alive(port: int) -> str | None:
    """What is wrong; None if nothing is."""
    status, document = ask(port, "/healthz")
    return None if status == 200 else f"/healthz: {status} {document}"


def ready(port: int) -> str | None:
    """What is wrong; None if nothing is."""
    status, document = ask(port, "/healthz")
    if status != 200:
        return f"/healthz: {status} {document}"
    if document.get("role") == "standby":
        return None
    status, document = ask(port, "/readyz")
    return None if status == 200 else str(document.get("reason"))


def main() -> int:
    """Run the check that is named on the command line."""
    checks = {"alive": alive, "ready": ready}
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        print(f"usage: probe.py {'|'.join(checks)}", file=sys.stderr)
        return 2
    port = int(os.environ.get("MIRROR_PUMP_LISTEN", "9187").rpartition(":")[2])
    try:
        problem = checks[sys.argv[1]](port)
    except (OSError, ValueError) as error:
        problem = f"127.0.0.1:{port}: {error}"
    print(problem or "ok")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
