"""Fuzzes the targets, guided by coverage: `python -m proofs.fuzz [TARGET ...] --minutes 10`.

The minutes are those of all targets together. An input that reaches what no other does is added to the corpus, which is
made small again at the end. One that breaks a promise is written beside it, and the exit code is 1. Needs atheris
(`make fuzz`).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from proofs.fuzz.targets import CORPUS, NAMES, corpus, target

_MOST_BYTES = 4096
_SECONDS_OF_INPUT = 20
_MEGABYTES = 4096
_RUNS = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+)")
_INSTRUMENT = "--instrumented"
_INSTRUMENTED = ["decoders", "mirror_pump"]


@dataclass(frozen=True)
class FuzzedTarget:
    """What a run of one target had."""

    name: str
    inputs: int
    branches: int
    crash: str
    """Where the input is that broke a promise; empty if none did."""

    def __str__(self) -> str:
        verdict = f"broken by {self.crash}" if self.crash else "holds"
        return f"| {self.name} | {self.inputs:,} | {self.branches:,} | {verdict} |"


def fuzz(name: str, seconds: int) -> FuzzedTarget:
    """Runs a target in a process of its own, since an input may end that."""
    crashes = CORPUS.parent / "crashes" / name
    crashes.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        grown, merged, program = Path(work, "grown"), Path(work, "merged"), Path(work, "fuzzer")
        grown.mkdir()
        merged.mkdir()
        # A merge starts the program again for each part of the inputs.
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m proofs.fuzz {_INSTRUMENT} "$0" {name} "$@"\n')
        program.chmod(0o700)
        outcome = _run(program, f"-max_total_time={seconds}", f"-artifact_prefix={crashes}/", grown, CORPUS / name)
        _run(program, "-merge=1", merged, CORPUS / name, grown)
        _replace(CORPUS / name, merged)
    match = _RUNS.search(outcome)
    artifact = re.search(r"Test unit written to (\S+)", outcome)
    if artifact is None and match is None:
        raise SystemExit(f"{name} did not end as a fuzzer does:\n{outcome[-3000:]}")
    inputs, branches = (int(match[1]), int(match[2])) if match else (0, 0)
    if artifact is not None:
        print(outcome[outcome.find("=== Uncaught") :][:3000], file=sys.stderr)
    return FuzzedTarget(name, inputs, branches, artifact[1] if artifact else "")


def _run(program: Path, *arguments: str | Path) -> str:
    limits = (f"-max_len={_MOST_BYTES}", f"-timeout={_SECONDS_OF_INPUT}", f"-rss_limit_mb={_MEGABYTES}")
    command = [str(program), *limits, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def _replace(directory: Path, merged: Path) -> None:
    """Makes a corpus that of the merge; inputs with names of their own, which found a defect, stay."""
    for path in list(corpus(directory.name)):
        if re.fullmatch("[0-9a-f]{40}", path.name):
            path.unlink()
    for path in merged.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())


def _instrumented(program: str, name: str, *arguments: str) -> None:
    """This process is the fuzzer of one target, and does not return."""
    import atheris

    with atheris.instrument_imports(include=_INSTRUMENTED):
        function = target(name)
        # What the program imports when it is first needed.
        for path in corpus(name):
            function(path.read_bytes())
    atheris.Setup([program, *arguments], function)
    atheris.Fuzz()


def main() -> int:
    """See the module."""
    if sys.argv[1:2] == [_INSTRUMENT]:
        _instrumented(*sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m proofs.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together [10]")
    arguments = parser.parse_args()
    names = arguments.targets or NAMES
    print("| target | inputs | branches | |\n|---|---|---|---|")
    outcomes = []
    for name in names:
        outcomes.append(fuzz(name, max(1, int(arguments.minutes * 60 / len(names)))))
        print(outcomes[-1], flush=True)
    return int(any(outcome.crash for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
