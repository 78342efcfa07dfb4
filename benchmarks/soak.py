"""`make soak`: faults for as long as you like. Stops at the first violation, and prints its seed.

Rounds of the property test (tests/support/mirror_state_machine.py), each with a new seed, in turn with tasks in
threads, which makes many mirrors, and with tasks in Spark, as in real use; between them the larger tests of copies,
kills and verify.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner  # noqa: E402 - the checkout has to be found first
from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session  # noqa: E402
from mirror_pump.testing.postgres import EmbeddedPostgres  # noqa: E402
from tests.support.mirror_state_machine import MirrorMachine  # noqa: E402

LARGER = (
    "tests/acceptance/test_kills.py",
    "tests/acceptance/test_verify.py",
    "tests/integration/copy/test_initial_copies.py",
    "tests/integration/stream/test_failures.py",
    "tests/integration/publish/test_publish.py",
)
"""Run with SOAK set: larger tables, more runs."""

EXAMPLES = {"threads": 20, "spark": 6}
STEPS = 40


def round_of_mirrors(server: EmbeddedPostgres, kind: str, runner: SparkTaskRunner, seed: int) -> None:
    """One run of the property test. Raises what it finds."""
    MirrorMachine.server = server
    MirrorMachine.spark_runner = runner if kind == "spark" else None
    run_state_machine_as_test(
        hypothesis.seed(seed)(MirrorMachine),
        settings=settings(
            max_examples=EXAMPLES[kind],
            stateful_step_count=STEPS,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900, help="how long to go on [900]")
    parser.add_argument("--seed", type=int, default=None, help="run one round with this seed, then end")
    parser.add_argument("--only", choices=[*EXAMPLES, "larger"], default=None, help="rounds of one kind only")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    kinds = [options.only] if options.only else ["threads", "spark", "larger"]
    log = ROOT / "build" / "soak"
    log.mkdir(parents=True, exist_ok=True)
    spark = spark_session(SparkSettings(master="local[4]", jars=False, app_name="soak", log=log / "spark.log"))
    done = 0
    with EmbeddedPostgres() as server:
        while done == 0 or (options.seed is None and time.monotonic() < deadline):
            kind = kinds[done % len(kinds)]
            seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
            print(f"round {done + 1}: {kind}, --seed={seed}, {MirrorMachine.published} points compared", flush=True)
            if kind == "larger":
                command = [sys.executable, "-m", "pytest", "-m", "", "-q", "-x", f"--hypothesis-seed={seed}", *LARGER]
                code = subprocess.run(command, cwd=ROOT, env={**os.environ, "SOAK": "1"}, check=False).returncode
                if code != 0:
                    return code
            else:
                round_of_mirrors(server, kind, SparkTaskRunner(spark, 4), seed)
            done += 1
    print(f"{done} rounds held; {MirrorMachine.published} (F, table) points compared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
