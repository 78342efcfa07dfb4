"""memory: a transaction of 2,000,000 rows compared with one of 200,000: the peak must not grow with the size."""

from __future__ import annotations

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.sampling import Peak
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

LARGE, SMALL = 2_000_000, 200_000
_TIMEOUT = 900.0


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must be live and empty."""
    sizes = {"small": options.scaled(SMALL, 10_000), "large": options.scaled(LARGE, 100_000)}
    peaks: dict[str, Peak] = {}
    rates: dict[str, float] = {}
    first = 0
    for name, rows in sizes.items():
        mirror.execute("CALL public.bench_load(%s, %s)", first, rows)
        first += rows
        peaks[name], rates[name] = _drain(mirror, options, name, rows)
    small, large = peaks["small"], peaks["large"]
    growth = large.total / small.total
    figures: dict[str, float | int | str | bool] = {
        **small.figures("small_transaction"),
        **large.figures("large_transaction"),
        "memory.small_transaction_rows": sizes["small"],
        "memory.large_transaction_rows": sizes["large"],
        "memory.large_transaction_rows_per_s": round(rates["large"]),
        "memory.large_transaction_growth": round(growth, 3),
    }
    return BenchmarkResult(
        figures,
        (
            Line(f"memory: transaction of {sizes['small']:,} rows", str(small)),
            Line(f"memory: transaction of {sizes['large']:,} rows", str(large), "", f"{growth:.2f}", "flat",
                 f"{rates['large']:,.0f} rows/s"),
        ),
    )  # fmt: skip


def _drain(mirror: BenchmarkMirror, options: Options, name: str, rows: int) -> tuple[Peak, float]:
    with MeasuredProcess(
        mirror, f"memory-{name}", "run", options.settings, until=mirror.wal_end(), profiling=options.profiling
    ) as process:
        process.finish(_TIMEOUT)
        steps = process.steps()
        received = sum(taken.details["changes"] for taken in steps if taken.step is Step.RECEIVED)
        if received != rows:
            raise BenchmarkFailed(f"{received} changes were received, not {rows}")
        last = max(taken.at for taken in steps if taken.step is Step.PUBLISHED)
        return process.sampler.peak(), rows / (last - process.first(Step.STREAMING).at)
