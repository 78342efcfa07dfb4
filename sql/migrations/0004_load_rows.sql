-- What a load has changed in partitions whose changes are captured or corrections. Its own transaction empties it.
CREATE UNLOGGED TABLE modak.mirror_load_rows (
    table_id        bigint      NOT NULL,
    relation_id     bigint      NOT NULL,
    partition_id    text        NOT NULL,
    kind            text        NOT NULL,
    image           text        NOT NULL
);
COMMENT ON TABLE modak.mirror_load_rows IS 'Rows of partitions that an unfinished load has changed; always empty for other transactions';
CREATE INDEX modak_mirror_load_rows_idx ON modak.mirror_load_rows (table_id, relation_id);
