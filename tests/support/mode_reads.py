"""The reads of tests/support/mode_world.py: each finds one state that the database had."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.testing.mirror import assert_same
from tests.support.mode_tables import ModeKind, ModeTable, assert_products_read
from tests.support.model_history import ModelHistory

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


_LEFT: LiteralString = (
    "SELECT table_id, reader, started_at, expires_at FROM modak.read_pins"
    " WHERE NOT (reader LIKE '%, mirror-pump' AND expires_at <= now() + interval '2 minutes')"
)
"""Pins, but those of proofs, which expire within two minutes: a proof that has lost its connection leaves its own."""


@dataclass(frozen=True, eq=False)
class _HeldPin:
    """A reader's pin."""

    table: ModeTable
    pin_id: Any
    read: tuple[int, str]
    """The cut-line and the metadata file that it reads."""
    in_one_snapshot: bool
    ingests: int
    """Ingests that had come by then."""


class ModeReads:
    """Reads of some tables. `turn` is held by whoever wants the tables to himself. `found` counts reads."""

    def __init__(
        self,
        tables: Sequence[ModeTable],
        history: ModelHistory,
        duckdb: DuckDBPyConnection,
        turn: threading.Lock,
        chance: random.Random,
        found: Counter[str],
    ) -> None:
        self._tables = tables
        self._cut = [table for table in tables if table.kind is not ModeKind.PLAIN]
        self._database = tables[0].database
        self._history = history
        self._duckdb = duckdb
        self._turn = turn
        self._chance = chance
        self._found = found
        self._pins: list[_HeldPin] = []

    def some(self, *, led: bool) -> None:
        """A read of a random kind. `led`: a pump runs, so the frontier moves."""
        match self._chance.randrange(6):
            case 0 | 1 | 2:
                self.by_protocol()
            case 3:
                self.main()
            case 4:
                self._by_pin()
            case _:
                self._by_product(led)

    def by_protocol(self) -> None:
        """One read by the protocol, beside the writer."""
        self._chance.choice(self._cut).assert_exact(self._duckdb)
        self._found["reads by the protocol"] += 1

    def main(self) -> None:
        """The lake's current snapshot."""
        self._found["reads of main"] += self._chance.choice(self._tables).assert_main(self._history, self._duckdb)

    def pin(self) -> None:
        """A reader begins."""
        self._pin(self._chance.choice(self._cut), in_one_snapshot=self._chance.random() < 0.7)

    def release(self) -> None:
        """A reader looks once more, and ends."""
        if self._pins:
            self._release(self._chance.choice(self._pins))

    def release_all(self, table: ModeTable) -> None:
        """Somebody waits for the readers of this table."""
        for pin in [pin for pin in self._pins if pin.table is table]:
            self._release(pin)

    def everything(self) -> None:
        """Every read of every table, when nobody writes and nothing is left to do."""
        for table in self._tables:
            if table in self._cut:
                table.assert_exact(self._duckdb)
                self._found["reads by the protocol"] += 1
            assert table.assert_main(self._history, self._duckdb), f"{table.name} is not live"
            table.assert_heap()
        for mode in (ReadMode.SEAM, ReadMode.HYBRID):
            assert_products_read(self._tables, mode)
        assert_products_read([table for table in self._tables if table.kind.streams], ReadMode.LAKE)
        assert self._database.rows(_LEFT) == [], "pins are left"

    def _pin(self, table: ModeTable, *, in_one_snapshot: bool) -> _HeldPin:
        ingests = self._ingests(table)
        ((pin_id, cut, location),) = self._database.rows(
            "SELECT pin_id, t, metadata_location FROM modak.pin(%s, '10 minutes', %s)", (table.name, in_one_snapshot)
        )
        pin = _HeldPin(table, pin_id, (cut, location), in_one_snapshot, ingests)
        self._pins.append(pin)
        return pin

    def _release(self, pin: _HeldPin) -> None:
        self._unpin(self._read_by(pin))

    def _unpin(self, pin: _HeldPin) -> None:
        assert self._database.rows("SELECT modak.release(%s)", (pin.pin_id,)) == [(True,)], "the pin was gone"
        self._pins.remove(pin)

    def _by_pin(self) -> None:
        if self._pins:
            self._read_by(self._chance.choice(self._pins))

    def _read_by(self, pin: _HeldPin) -> _HeldPin:
        """Through a pin. If an ingest has landed since, the reader begins again. Returns the pin that it has then."""
        while True:
            found, wanted = pin.table.seam(self._duckdb, pin.read)
            if self._ingests(pin.table) == pin.ingests:
                break
            self._unpin(pin)
            pin = self._pin(pin.table, in_one_snapshot=pin.in_one_snapshot)
            self._found["pins from before an ingest"] += 1
        assert_same(wanted, found, f"the read of {pin.table.name} by a pin at the cut-line {pin.read[0]}")
        self._found["reads by pins"] += 1
        return pin

    def _ingests(self, table: ModeTable) -> int:
        """How many ingests have landed in the table."""
        return int(
            self._database.rows(
                "SELECT count(*) FROM modak.op_log WHERE table_id = %s AND op_kind = 'ingest' AND phase = 'done'",
                (table.table_id,),
            )[0][0]
        )

    def _by_product(self, led: bool) -> None:
        """By the product, and in the heap, while the writer waits."""
        mode = self._chance.choice((ReadMode.SEAM, ReadMode.SEAM, ReadMode.HEAP, ReadMode.HYBRID))
        with self._turn:
            if mode is ReadMode.HEAP:
                chosen = [table for table in self._tables if table.kind.whole]
            elif mode is ReadMode.HYBRID and led:
                chosen = list(self._tables)
            else:
                # A mirrored table would be read at a frontier before the present.
                chosen = self._cut
            assert_products_read(chosen, mode)
        self._chance.choice(self._tables).assert_heap()
        self._found[f"reads by the product, {mode}"] += 1
