"""Internal limits: intervals, patience and sizes of the running service that no user needs to change, but tests do.

A limit is a field of `Settings.limits`. Tests pass `limits=InternalLimits(...)`, and set `MIRROR_PUMP_LIMITS__NAME` for
a pump that runs as a process of its own. There are no options and no keys of the configuration file for them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from mirror_pump.settings.units import ROWS, Seconds, Size, Unit

_MIB = 1024 * 1024


class InternalLimits(BaseModel):
    """The internal limits of one process. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)

    recovered_after: Seconds = Field(
        default=10.0,
        description="A session that has caught up counts as recovered after this many seconds, even without a publish",
    )
    # Failed work of one table is retried without ending the session: folds, upkeep jobs, steps of retention.
    retry_pause_max: Seconds = Field(
        default=60.0, description="Longest pause in seconds before failed background work on a table is tried again"
    )

    # No reader notices more than seven commits a second, but each takes CPU and leaves files.
    batch_pause: Seconds = Field(
        default=0.14, description="Shortest time in seconds from the end of one batch to the end of the next"
    )

    # A look costs microseconds for each table. What is written before a table has its index is deleted by key.
    upkeep_interval: Seconds = Field(
        default=1.0,
        description="Seconds between looks for due conversions, merges and fills, and between decisions about which"
        " tables have a key index",
    )

    # The leader shows a sign of life every two seconds. A machine that is busy may delay it.
    leader_silence: Seconds = Field(
        default=12.0,
        description="Seconds without a sign of life of the leader after which a standby ends its sessions and leads",
    )

    batch_memory: Size = Field(
        default=ByteSize(32 * _MIB),
        description="Keys and incomplete rows of a batch that wait in memory for its end; the others wait in a file",
    )
    # The driver has some four times as much in memory at a time. A part makes a file, or more.
    completion_part_bytes: Size = Field(
        default=ByteSize(32 * _MIB),
        description="Rows whose large values the stream left out are completed about this many bytes at a time",
    )
    # Looking for a local file takes microseconds; looking for an object takes a request.
    lake_watch_interval: Seconds = Field(
        default=5.0,
        description="Seconds between looks for other engines' commits and, on a local disk, for the lake's files",
    )
    lake_watch_interval_remote: Seconds = Field(
        default=60.0, description="Seconds between checks whether the lake's files are there, in an object store"
    )
    # All manifests are read, and an object store lists all files.
    file_watch_interval: Seconds = Field(
        default=600.0,
        description="Seconds between looks at every file that tables, change feeds and kept moments need; the first one"
        " begins after a tenth of it",
    )
    # With very many files a round takes longer than its interval.
    file_watch_share: Annotated[float, Field(gt=0, le=1), Unit("SHARE", "a share: 0.5 is half of the time")] = Field(
        default=0.003, description="The largest share of time that goes into these looks"
    )

    # Without an index a fold deletes by key, and engines that cannot read equality deletes cannot use the newest
    # snapshot until these deletes are converted.
    index_patience: Seconds = Field(
        default=60.0, description="Seconds that a fold waits for the table's key index to be built"
    )
    # A tenth of a second of the loop's time.
    rows_read_at_once: Annotated[int, Field(ge=0), ROWS] = Field(
        default=200_000,
        description="Rows of a table without a key that the loop reads itself to find those that are deleted; a batch"
        " that needs more waits for the row reader",
    )
    archive_check_interval: Seconds = Field(
        default=30.0,
        description="Seconds between checks whether a published snapshot refers to files that main no longer has",
    )
    # Each refresh costs a manifest list.
    archive_refresh_age: Seconds = Field(
        default=60.0, description="Age in seconds from which a published snapshot is refreshed for such files alone"
    )

    # The newest row may be deleted and come back.
    unseal_after: Seconds = Field(
        default=60.0,
        description="Capture of a sealed partition's changes ends when it was not due for this many seconds",
    )
    # Its locks are in the way of writers, of ALTER TABLE and of VACUUM.
    ingest_pin_hold: Seconds = Field(
        default=10.0,
        description="Seconds that an ingest's transaction waits for readers' pins before it lets its locks go",
    )
    # Twice as long as the pin of a reader that died lasts.
    ingest_pin_patience: Seconds = Field(
        default=1800.0, description="Seconds that an ingest waits for readers' pins before it ends with an error"
    )
    # A pump that is killed during the comparison leaves the pin behind, and drops wait for it.
    proof_pin_seconds: Seconds = Field(
        default=120.0, description="Lifetime in seconds of the pin of a drop proof; renewed after half of it"
    )
    proof_task_bytes: Size = Field(
        default=ByteSize(64 * _MIB),
        description="Bytes of heap blocks, or of data files, that one task of a drop proof reads",
    )
    # Half a minute, in which writers of the partition wait. Readers have all corrections in memory.
    late_partition_bytes: Size = Field(
        default=ByteSize(64 * _MIB),
        description="The largest partition attached below the cut-line whose rows become corrections",
    )

    # Each is a small file, which readers open until it is merged.
    scattered_partitions: Annotated[int, Field(ge=1), Unit("PARTITIONS", "lake partitions")] = Field(
        default=100, description="A batch or fold that changes this many lake partitions of a table is reported"
    )

    # Each task decodes the segment once more, which costs less than writing the files of so many tables.
    task_tables: Annotated[int, Field(ge=1), Unit("TABLES", "tables")] = Field(
        default=100, description="A small segment of the stream is divided among tasks by tables, this many for each"
    )

    # Right after a checkpoint began, the rate would be that of a moment.
    wal_rate_window: Seconds = Field(
        default=10.0, description="Shortest time in seconds over which the rate of WAL is measured"
    )
    wal_guard_interval: Seconds = Field(
        default=10.0, description="Seconds between checks of how much more WAL the slot may keep"
    )
    # Long enough for the slot's restart position to move: the server offers a new one every 15 s.
    wal_guard_window: Seconds = Field(
        default=60.0,
        description="Seconds over which the growth of the slot's WAL is measured; it must be too fast for as long again"
        " before a table fails or the slot is dropped",
    )

    # A pump that is restarted all the time leads for moments only.
    resync_lead_patience: Seconds = Field(
        default=10.0, description="Seconds that `resync` waits for a pump that leads to notice that its slot is lost"
    )

    verify_pause: Seconds = Field(
        default=0.25, description="Seconds before `verify` compares a table again that changed meanwhile; doubles"
    )
    verify_shown_rows: Annotated[int, Field(ge=0), ROWS] = Field(
        default=20, description="Differing rows that a report of `verify` shows; it counts all"
    )
    # Some 100 bytes of the pump's memory each.
    compared_rows: Annotated[int, Field(ge=0), ROWS] = Field(
        default=2_000_000,
        description="Rows of heap or lake compared one by one when a table comes back; with more it is copied",
    )
    # Spark takes some ten seconds to start, and about as long as DuckDB to compare so much.
    verify_small_bytes: Size = Field(
        default=ByteSize(64 * _MIB),
        description="`verify` compares a table in its own process if heap with TOAST, and lake, are not larger",
    )
    # A file of one repeated value may hold any number of rows.
    verify_small_rows: Annotated[int, Field(ge=0), ROWS] = Field(
        default=2_000_000,
        description="`verify` compares a table in its own process if the lake has no more rows and deleted rows",
    )
    # Beyond it DuckDB spills to disk. What cannot be spilled is compared by Spark.
    verify_memory: Size = Field(
        default=ByteSize(1024 * _MIB), description="Memory that DuckDB may use for a comparison by `verify`"
    )

    # Each reading takes a few queries, and no file of the lake unless a client asks for the whole status.
    status_interval: Seconds = Field(
        default=5.0, description="Seconds between two readings of the mirror's status for metrics and the HTTP port"
    )

    # Each has a connection to Postgres and a thread.
    loads_at_once: Annotated[int, Field(ge=1), Unit("LOADS", "loads")] = Field(
        default=2, description="Loads by HTTP at the same time; further ones are refused"
    )
    load_pause: Seconds = Field(
        default=60.0, description="Seconds that a load by HTTP waits for the next part of its body"
    )
    load_seconds: Seconds = Field(default=3600.0, description="Seconds for the whole body of a load by HTTP to arrive")
    load_lock_seconds: Seconds = Field(
        default=30.0,
        description="Seconds that a load by HTTP waits for a lock before it is given up",
    )

    # Each holds a snapshot of each table, and a pin on it.
    served_moments: Annotated[int, Field(ge=1), Unit("MOMENTS", "moments")] = Field(
        default=200, description="Moments that clients of the catalog may have attached at a time"
    )
    served_bytes: Size = Field(
        default=ByteSize(64 * _MIB), description="Answers of the catalog that are kept to be given again"
    )

    spark_partition_blocks: Annotated[int, Field(ge=1), Unit("BLOCKS", "blocks")] = Field(
        default=1024, description="Least number of heap blocks (8 KiB) that a Spark partition of a heap read takes"
    )
