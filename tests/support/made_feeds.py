"""Change feeds with rows that a test makes up, in files that it divides and merges as it likes."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa
from psycopg.types.json import Jsonb

from mirror_pump.lake.commit.catalog import insert_pointer, swap_pointer
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.format.data_files import DataFileWriter, WrittenFile
from mirror_pump.lake.format.feed_schema import FEED_PARTITIONING, FEED_SUFFIX, feed_schema
from mirror_pump.lake.storage import StorageOptions, list_files
from mirror_pump.model import FeedMode, TableId, TableName, format_lsn
from mirror_pump.source.catalog.change_feeds import insert_feed
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.testing.mirror import Mirror

STORAGE = StorageOptions(fsync=False)
TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, name text, amount numeric(9,2), u uuid, at timestamptz, tags int[],"
    " share float8)"
)
_DAY = datetime.timedelta(days=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Row = dict[str, Any]


class MadeFeed:
    """The feed of a mirrored table. Its rows are in `rows`, in the order of their commits."""

    def __init__(self, mirror: Mirror, table: str, rng: random.Random) -> None:
        """Of a table as TABLE, which is mirrored."""
        self._mirror = mirror
        self._rng = rng
        ((table_id,),) = mirror.database.rows("SELECT %s::regclass::oid::bigint", (table,))
        self.feed_id = int(table_id)
        with mirror.database.session() as connection:
            mirrored = load_table(connection, TableId(self.feed_id))
            assert mirrored is not None
            self._schema = feed_schema(mirrored, FeedMode.ROWS)
            self._name = TableName("public", f"{table}{FEED_SUFFIX}")
            self.location = f"{mirrored.location}{FEED_SUFFIX}"
            created = LakeTable.create(
                self._schema, self.location, STORAGE, {}, self._now, partitioning=FEED_PARTITIONING
            )
            self._table = created.table
            insert_pointer(connection, self._name.schema, self._name.name, created.new_location)
            head = TableHead.of(created.table).to_json()
            insert_feed(
                connection, self.feed_id, mirror.settings.slot, FeedMode.ROWS, None, self._name, self.location, head
            )
            connection.execute("UPDATE modak.change_feeds SET begins_lsn = 1 WHERE feed_id = %s", (self.feed_id,))
        self.rows: list[Row] = []
        self._batches: list[list[Row]] = []
        """The rows of each file or, across midnight, two."""
        self._next_lsn = 1000

    @property
    def _now(self) -> int:
        return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)

    @property
    def newest_lsn(self) -> int:
        """The position of the last transaction."""
        return int(self.rows[-1]["_lsn"])

    def change(self, transactions: int) -> None:
        """Publishes this many transactions more, in one file."""
        rows = [row for _ in range(transactions) for row in self._transaction()]
        self.rows += rows
        self._batches.append(rows)
        self._commit(RowDelta((SegmentFiles(tuple(self._files(rows)), ()),), summary=self._summary))

    def merge(self) -> None:
        """Divides all rows into files anew, each of which has the rows of several that were neighbours."""
        ends = sorted(self._rng.sample(range(1, len(self.rows)), min(3, len(self.rows) - 1)))
        parts = [self.rows[begin:end] for begin, end in zip([0, *ends], [*ends, len(self.rows)], strict=True)]
        self._batches = parts
        files = tuple(file for part in parts for file in self._files(part))
        self._commit(RowDelta((SegmentFiles(files, ()),), replaces=EveryFile(), summary=self._summary))

    def scatter(self) -> None:
        """Rewrites all rows in no order, as an engine may that joins files."""
        scattered = self._rng.sample(self.rows, len(self.rows))
        self._batches = [scattered]
        self._commit(
            RowDelta((SegmentFiles(tuple(self._files(scattered)), ()),), replaces=EveryFile(), summary=self._summary)
        )

    def between(self, since: int, until: int) -> list[Row]:
        """The rows of an interval."""
        return [row for row in self.rows if since <= row["_lsn"] < until]

    def position(self) -> int:
        """Any position, mostly that of a transaction or beside it."""
        return int(self._rng.choice(self.rows)["_lsn"]) + self._rng.choice([0, 0, 1, -1, 17])

    def stored(self) -> set[str]:
        """All files below its root."""
        return {file.location for file in list_files(self.location, STORAGE)}

    @property
    def _summary(self) -> dict[str, str]:
        return {"mirror-pump.frontier": format_lsn(self._next_lsn)}

    def _transaction(self) -> list[Row]:
        rng = self._rng
        self._next_lsn += rng.randint(1, 90)
        lsn, xid = self._next_lsn, len(self.rows) + 1
        # Commit times may go back by some milliseconds, also across midnight.
        committed = _EPOCH + 20_000 * _DAY + datetime.timedelta(milliseconds=lsn * 1200 + rng.randint(-500, 500))
        rows = []
        for number in range(rng.choice([1, 1, 2, 5])):
            operation = rng.choice(["insert", "update", "delete"])
            rows.append(
                {
                    "_op": operation,
                    "_lsn": lsn,
                    "_seq": 2 * number,
                    "_xid": xid,
                    "_committed_at": committed,
                    "_origin": rng.choice([None, "other"]),
                    "_old": None if operation == "insert" else self._values(),
                    **self._values(),
                }
            )
        return rows

    def _values(self) -> Row:
        rng = self._rng
        return {
            "id": rng.randint(0, 99),
            "name": rng.choice([None, "a", "ünï", "x" * 40]),
            "amount": rng.choice([None, Decimal("-1.50"), Decimal("9999999.99")]),
            "u": rng.choice([None, uuid.UUID(int=rng.getrandbits(128)).bytes]),
            "at": rng.choice([None, _EPOCH + datetime.timedelta(microseconds=rng.randint(-(10**15), 10**15))]),
            "tags": rng.choice([None, [], [1, None]]),
            "share": rng.choice([None, 0.5, -0.0, float("nan"), float("inf")]),
        }

    def _files(self, rows: Sequence[Row]) -> list[WrittenFile]:
        """The rows in files: one for each day."""
        files = []
        ordered = sorted(rows, key=_day)
        for day, of_day in groupby(ordered, key=_day):
            with DataFileWriter(
                self._schema, self.location, STORAGE, partition=(day,), row_group_rows=self._rng.choice([7, 50, 1000])
            ) as writer:
                content = pa.Table.from_pylist(list(of_day), schema=self._schema.arrow)
                for batch in content.to_batches(max_chunksize=7):
                    writer.write(batch)
            files.append(writer.written)
        return files

    def _commit(self, delta: RowDelta) -> None:
        with self._mirror.database.session() as connection:
            pinned = connection.execute(
                "SELECT snapshot_id FROM modak.feed_pins WHERE feed_id = %s AND expires_at > now()", (self.feed_id,)
            ).fetchall()
            staged = self._table.stage(delta, self._now, frozenset(row[0] for row in pinned))
            assert self._swap(connection, staged)
        self._table = staged.table

    def _swap(self, connection: PgConnection, staged: StagedCommit) -> bool:
        """Moves pointer and head, as a publish does. False if another commit came first."""
        assert staged.old_location is not None
        head = Jsonb(TableHead.of(staged.table).to_json())
        with connection.transaction():
            if not swap_pointer(
                connection, self._name.schema, self._name.name, staged.old_location, staged.new_location
            ):
                return False
            connection.execute("UPDATE modak.change_feeds SET head = %s WHERE feed_id = %s", (head, self.feed_id))
        return True


def _day(row: Row) -> int:
    days: int = (row["_committed_at"] - _EPOCH).days
    return days
