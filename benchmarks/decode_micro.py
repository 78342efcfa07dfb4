"""Cost of decoding a segment on one thread, alone and with Parquet: `python -m benchmarks.decode_micro`.

The main case is the benchmark's table public.acct with its mix of changes. The others show the cost of other keys, of
unchanged TOAST values and of REPLICA IDENTITY FULL, and the least cost of a tiny segment.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from decoders.columns import ColumnType
from decoders.segment import RelationShape, TableChanges, decode_segment
from tests.support.pgoutput_encoder import BEGIN, COMMIT, UNCHANGED, Cell, delete, insert, segment, update

ROWS_BEFORE = 4_000_000
TRANSACTION = 100
EncodedSegment = tuple[bytes, npt.NDArray[np.int32]]
MicroCase = tuple[EncodedSegment, Mapping[int, RelationShape]]


def shape(relation: int, types: str, key: tuple[int, ...] = (0,)) -> RelationShape:
    kinds = tuple(map(ColumnType.parse, types.split()))
    names = tuple(f"c{place}" for place in range(len(kinds)))
    return RelationShape(relation, names, kinds, key, tuple(place in key for place in range(len(kinds))), False)  # noqa: FBT003


ACCT = "long int decimal(14,2) string timestamptz"


def acct_mix(count: int, make_key: Callable[[int], list[Cell]], *, full: bool = False) -> EncodedSegment:
    """50% updates of random keys, 40% inserts, 10% deletes, in transactions of 100."""
    random = np.random.default_rng(1)
    kinds = random.random(count)
    keys = random.integers(0, ROWS_BEFORE, count)
    messages = []
    for place in range(count):
        if place % TRANSACTION == 0:
            messages += [COMMIT, BEGIN]
        fresh = 0.5 <= kinds[place] < 0.9
        key = make_key(ROWS_BEFORE + place if fresh else int(keys[place]))
        second, micro = place % 60, random.integers(0, 1_000_000)
        row: list[Cell] = [
            *key,
            str(place % 100),
            f"{random.integers(-(10**8), 10**8) / 100:.2f}",
            random.bytes(20).hex(),
            f"2024-05-06 07:08:{second:02}.{micro:06}+00",
        ]
        old: list[Cell] = row if full else [*key, None, None, None, None]
        if fresh:
            messages.append(insert(1, row))
        elif kinds[place] < 0.5:
            messages.append(update(1, row, old if full else None, full=full))
        else:
            messages.append(delete(1, old, full=full))
    return segment(messages)


def toast_mix(count: int) -> EncodedSegment:
    """Repeated updates of 2,000 rows, each with a large value that is usually not sent."""
    random = np.random.default_rng(1)
    keys, sent = random.integers(0, 2000, count), random.random(count) < 0.05
    document = "a document " * 300
    return segment(
        update(1, [str(key), str(place), document if with_it else UNCHANGED])
        for place, (key, with_it) in enumerate(zip(keys, sent, strict=True))
    )


def document_mix(count: int) -> EncodedSegment:
    """Inserts of documents of 240 bytes, printed as jsonb."""
    random = np.random.default_rng(1)
    numbers, cents = random.integers(0, 10**6, count), random.integers(0, 10**6, count)

    def document(place: int) -> str:
        address = f'{{"zip": "{place % 99_999:05}", "city": "Berlin", "street": "Street {place % 1000}"}}'
        return (
            f'{{"id": {place}, "name": "customer {place}", "tags": ["a", "{place % 7}"], "count": {numbers[place]},'
            f' "price": {cents[place] / 100:.2f}, "score": null, "active": true, "address": {address},'
            f' "created": "2024-05-06T07:08:09Z"}}'
        )

    return segment(insert(1, [str(place), document(place)]) for place in range(count))


def tiny() -> MicroCase:
    tables = {relation: shape(relation, ACCT) for relation in range(1, 5)}
    row: list[Cell] = ["1", "2", "3.00", "a note of some length", "2024-01-01 00:00:00.5+00"]
    messages = [BEGIN, *(update(relation, row) for relation in (1, 2, 3, 4, 1)), COMMIT]
    return segment(messages), tables


def cases(count: int) -> dict[str, MicroCase]:
    return {
        "acct": (acct_mix(count, lambda key: [str(key)]), {1: shape(1, ACCT)}),
        "acct, FULL": (acct_mix(count, lambda key: [str(key)], full=True), {1: shape(1, ACCT)}),
        "acct, text key": (
            acct_mix(count, lambda key: [f"account {key}"]),
            {1: shape(1, ACCT.replace("long", "string"))},
        ),
        "acct, key (int, text)": (
            acct_mix(count, lambda key: [str(key % 1000), f"{key // 1000}"]),
            {1: shape(1, "int string int decimal(14,2) string timestamptz", (0, 1))},
        ),
        "unchanged values": (toast_mix(count), {1: shape(1, "long int string")}),
        "documents, string": (document_mix(count), {1: shape(1, "long string")}),
        "documents, variant": (document_mix(count), {1: shape(1, "long variant")}),
        "5 changes, 4 tables": tiny(),
    }


def write(results: list[TableChanges]) -> int:
    """Bytes of the Parquet files that a task would write. They stay in memory, since the disk is not measured."""
    size = 0
    for result in results:
        # Dictionaries for numbers, times and unique notes would be built in vain.
        for table in (result.rows, result.deleted_keys):
            target = io.BytesIO()
            pq.write_table(table, target, compression="zstd", use_dictionary=False)
            size += target.tell()
    return size


def best(run: Callable[[], object], times: int = 7) -> float:
    """CPU seconds of the fastest run: slower runs, and the clock, measure other load on the machine."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=100_000, help="changes in a segment")
    count = parser.parse_args().changes
    pa.set_cpu_count(1)
    print(f"{'case':24}{'changes':>9}{'decode ms':>11}{'with Parquet ms':>17}{'changes/s':>12}{'Parquet MB':>12}")
    for name, ((data, lengths), shapes) in cases(count).items():
        results = decode_segment(data, lengths, shapes)
        assert all(result.error is None for result in results)
        changes = sum(result.changes for result in results)
        decode = best(lambda data=data, lengths=lengths, shapes=shapes: decode_segment(data, lengths, shapes))  # type: ignore[misc]
        parquet = best(lambda results=results: write(results))  # type: ignore[misc]
        total = decode + parquet
        print(
            f"{name:24}{changes:9,}{decode * 1000:11.2f}{total * 1000:17.2f}{changes / total:12,.0f}"
            f"{write(results) / 1e6:12.2f}"
        )


if __name__ == "__main__":
    main()
