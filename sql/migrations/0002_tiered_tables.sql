-- Tiered tables (modak.tables.mode = 'tiered'): their partitions are copied into the lake when they leave the heap.

CREATE TABLE modak.partition_chunks (
    table_id        bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    partition_id    text        NOT NULL,
    chunk_no        int         NOT NULL,
    captured_after  bigint      NOT NULL,
    relation_id     bigint      NOT NULL,
    filenode        bigint      NOT NULL,
    lo_block        bigint      NOT NULL,
    hi_block        bigint,
    rows            bigint,
    file            jsonb,
    done_at         timestamptz,
    PRIMARY KEY (table_id, partition_id, chunk_no)
);
COMMENT ON TABLE modak.partition_chunks IS
    'Block ranges of partitions of tiered tables that are copied into the lake, and the files of those that are read; nothing of them is in the lake yet';
