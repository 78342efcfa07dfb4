"""Ingests and labelled loads whose models change in the same transactions, by triggers on the catalog.

What is about to come is announced: the triggers write it to the model when the ingest is `done`, or the label
`committed`, whichever process did that, dead or alive.
"""

from __future__ import annotations

import io
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.ingest.ingest_request import IngestRequest, IngestStep, OnConflict, OnError
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.load.load_job import LoadRequest, LoadResult, load
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.source.loads.load_writes import LoadMode
from mirror_pump.testing.mirror import Mirror, Row, await_true
from tests.support.ingest_scene import csv_text
from tests.support.killed_ingest import started_ingest, started_load
from tests.support.mode_tables import ModeTable
from tests.support.mode_trail import ModeTrail
from tests.support.retention_table import WIDTH

_NAMES = ("at", "id", "n", "v")

_AUDIT = """
CREATE SEQUENCE audit.ids START 10000;
CREATE TABLE audit.coming (table_id bigint, label text, model text, gone boolean, rows jsonb, times int DEFAULT 0,
                           PRIMARY KEY (table_id, label));
CREATE FUNCTION audit.come() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
DECLARE
    c audit.coming;
BEGIN
  UPDATE audit.coming a SET times = times + 1
   WHERE a.table_id = NEW.table_id AND a.label = coalesce(to_jsonb(NEW) ->> 'label', '') RETURNING a.* INTO STRICT c;
  EXECUTE format('DELETE FROM %s m USING jsonb_to_recordset($1) AS c(at bigint, id bigint)'
                 ' WHERE (m.at, m.id) = (c.at, c.id)', c.model) USING c.rows;
  IF NOT c.gone THEN
    EXECUTE format('INSERT INTO %s (at, id, n, v) SELECT at, id, n, v'
                   '  FROM jsonb_to_recordset($1) AS c(at bigint, id bigint, n int, v text)', c.model) USING c.rows;
  END IF;
  RETURN NULL; END $$;
CREATE TRIGGER come AFTER UPDATE ON modak.op_log FOR EACH ROW
  WHEN (NEW.op_kind = 'ingest' AND NEW.phase = 'done' AND OLD.phase <> 'done') EXECUTE FUNCTION audit.come();
CREATE TRIGGER come AFTER UPDATE ON modak.load_labels FOR EACH ROW
  WHEN (NEW.state = 'committed' AND OLD.state <> 'committed') EXECUTE FUNCTION audit.come();
CREATE FUNCTION audit.ended() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  EXECUTE format('DELETE FROM %s_model WHERE at < $1', OLD.table_id::oid::regclass) USING OLD.retention_line;
  RETURN NULL; END $$;
CREATE TRIGGER ended AFTER DELETE ON modak.cutline FOR EACH ROW EXECUTE FUNCTION audit.ended();
"""
"""The last one: what has expired leaves the model when the registration ends. From then on anybody may write there."""


@dataclass(frozen=True)
class _Load:
    """A load that was sent, and may be sent again."""

    request: LoadRequest
    content: bytes


@dataclass
class ModeInputs:
    """`found` counts what happened. `disturb` is called while an ingest looks for keys, and `unpin` when a load or an
    ingest of a table waits for readers."""

    mirror: Mirror
    directory: Path
    chance: random.Random
    found: Counter[str]
    trail: ModeTrail
    disturb: Callable[[], None]
    unpin: Callable[[ModeTable], None]
    _number: int = 0
    _sent: dict[str, list[_Load]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.mirror.database.session() as connection:
            connection.execute(_AUDIT)

    def ingest(self, table: ModeTable) -> None:
        """Rows on both sides of the cut-line: keys that may exist are replaced, new ones may be refused if they do, bad
        ones may be left out."""
        mode = self.chance.choice(("replace", "replace", "refuse", "skip"))
        rows = self._rows(table, new=mode == "refuse")
        path = self._file(rows, bad=mode == "skip")
        self._announce(table, "", rows)
        self.trail.note(f"  {mode}, {len(rows)} rows: {path.name}")

        def observe(progress: TableProgress) -> None:
            self.trail.note(f"  {progress.step} {progress.detail}")
            if progress.step is IngestStep.WAITING:
                self.unpin(table)
            elif progress.step is IngestStep.LOOKING and not progress.detail:
                self.disturb()

        request = IngestRequest(
            table.name,
            (str(path),),
            on_error=OnError.SKIP if mode == "skip" else OnError.ABORT,
            rejects=path.with_suffix(".jsonl") if mode == "skip" else None,
            on_conflict=OnConflict.REFUSE if mode == "refuse" else OnConflict.REPLACE,
        )
        try:
            outcome = ingest(self.mirror.settings, request, observe)
        except MirrorPumpError as error:
            self._refused(f"ingest, {mode}", error)
            return
        assert outcome.rows + outcome.rejected >= len(rows), outcome
        assert self._times(table, "") == 1, "an ingest that has landed is done once"
        self.found["ingests"] += 1
        self.found["ingested into the lake"] += outcome.lake_rows
        self.found["ingested into the heap"] += outcome.heap_rows

    def killed_ingest(self, table: ModeTable) -> None:
        """An ingest that is killed at a random step. It has landed, or not: its transaction changes the model."""
        rows = self._rows(table)
        path = self._file(rows)
        self._announce(table, "", rows)
        step = self.chance.choice([step for step in IngestStep if step is not IngestStep.WAITING])
        self.trail.note(f"  {len(rows)} rows, dies at {step}: {path.name}")
        process = started_ingest(self.mirror.settings, step, table.name, str(path))
        deadline = time.monotonic() + 90
        while process.exitcode is None and time.monotonic() < deadline:
            process.join(0.5)
            self.unpin(table)
        assert process.exitcode is not None, f"the ingest hangs before {step}"
        self._await_end("mirror-pump-ingest")
        self.found["ingests killed" if process.exitcode == -signal.SIGKILL else "ingests ended before"] += 1

    def load(self, table: ModeTable) -> None:
        """A load, killed or not, and the same again: it is there once."""
        mode = self.chance.choice((LoadMode.UPSERT, LoadMode.UPSERT, LoadMode.DELETE, LoadMode.INSERT))
        rows = self._rows(table, new=mode is LoadMode.INSERT)
        self._number += 1
        label = f"label {self._number}"
        content = csv_text(rows, _NAMES).encode()
        self._announce(table, label, rows, gone=mode is LoadMode.DELETE)
        self.trail.note(f"  {label}, {mode}, {len(rows)} rows")
        sent = _Load(LoadRequest(table.name, label, FileFormat.CSV, mode), content)
        if self.chance.random() < 0.5:
            self._killed_load(sent)
        if self._send(table, sent):
            self._sent.setdefault(table.name, []).append(sent)

    def load_again(self, table: ModeTable) -> None:
        """A load of long ago: nothing changes."""
        if self._sent.get(table.name):
            sent = self.chance.choice(self._sent[table.name])
            result = load(self.mirror.database.dsn, sent.request, io.BytesIO(sent.content))
            assert result.replayed, result
            assert self._times(table, sent.request.label) == 1, "a label is loaded once"
            self.found["loads replayed"] += 1

    def forget(self, table: ModeTable) -> None:
        """The table was unregistered, and its labels are gone."""
        self._sent.pop(table.name, None)

    def _killed_load(self, sent: _Load) -> None:
        least = self.chance.choice((None, 1, len(sent.content) // 2, len(sent.content)))
        process = started_load(self.mirror.database.dsn, sent.request, sent.content, least)
        if least is None:
            process.join(self.chance.uniform(0, 0.4))
            process.kill()
        process.join(60)
        self.found["loads killed"] += process.exitcode == -signal.SIGKILL
        self._await_end("mirror-pump-load")

    def _send(self, table: ModeTable, sent: _Load) -> bool:
        """Loads, and once more. Returns whether it is committed."""
        before = self._times(table, sent.request.label)
        try:
            first = self._loaded(sent)
        except MirrorPumpError as error:
            if before:
                raise
            self._refused("load", error)
            return False
        assert first.replayed is (before == 1), (first, before)
        second = self._loaded(sent)
        assert second.replayed, second
        assert second.outcome == first.outcome
        assert self._times(table, sent.request.label) == 1, "a label is loaded once"
        self.found["loads"] += 1
        self.found["loads of a dead client found"] += first.replayed
        return True

    def _loaded(self, sent: _Load) -> LoadResult:
        return load(self.mirror.database.dsn, sent.request, io.BytesIO(sent.content))

    def _rows(self, table: ModeTable, *, new: bool = False) -> list[Row]:
        """Rows anywhere in the table, now and then of an expired time. Their keys are few, so that many exist, or new
        ones."""
        chance = self.chance
        low = max(table.line, 0) if chance.random() < 0.9 else 0
        top = table.partitions * WIDTH
        low = min(low, top - WIDTH)
        count = chance.choice((1, 10, 60))
        if new:
            with self.mirror.database.session() as connection:
                ids = connection.execute("SELECT nextval('audit.ids') FROM generate_series(1, %s)", (count,)).fetchall()
            keys = {(chance.randrange(low, top), id_) for (id_,) in ids}
        else:
            keys = {(chance.randrange(low, top), chance.choice((chance.randrange(60), 5000))) for _ in range(count)}
        self._number += 1
        return [(at, id_, self._number, f"input {self._number}") for at, id_ in sorted(keys)]

    def _file(self, rows: list[Row], *, bad: bool = False) -> Path:
        self._number += 1
        path = self.directory / f"input{self._number}.csv"
        written: list[tuple[Any, ...]] = [*rows, (1, 1, "no number", "")] if bad else list(rows)
        path.write_text(csv_text(written, _NAMES))
        return path

    def _announce(self, table: ModeTable, label: str, rows: list[Row], *, gone: bool = False) -> None:
        announced = Jsonb([dict(zip(_NAMES, row, strict=True)) for row in rows])
        with self.mirror.database.session() as connection:
            connection.execute(
                "INSERT INTO audit.coming (table_id, label, model, gone, rows) VALUES (%(id)s, %(label)s, %(model)s,"
                " %(gone)s, %(rows)s) ON CONFLICT (table_id, label) DO UPDATE SET rows = excluded.rows, times = 0",
                {"id": table.table_id, "label": label, "model": table.model, "gone": gone, "rows": announced},
            )

    def _times(self, table: ModeTable, label: str) -> int:
        """How often what was announced has come."""
        rows = self.mirror.database.rows(
            "SELECT times FROM audit.coming WHERE table_id = %s AND label = %s", (table.table_id, label)
        )
        return int(rows[0][0])

    def _await_end(self, application: str) -> None:
        """The server may still be at work for a client that is gone."""
        await_true(
            lambda: (
                not self.mirror.database.rows(
                    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
                    (application,),
                )
            ),
            60,
            f"the session of {application} ends",
        )

    def _refused(self, what: str, error: MirrorPumpError) -> None:
        self.trail.note(f"  refused: {error}")
        self.found[f"refused: {what}: {_shape(str(error))}"] += 1


def _shape(message: str) -> str:
    """A message without numbers and names, so that those of a kind are counted together."""
    return "".join("#" if character.isdigit() else character for character in message)[:110]
