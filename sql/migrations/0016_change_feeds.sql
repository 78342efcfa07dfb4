-- Change feeds (docs/design/change-feeds.md): beside a mirrored table, an append-only Iceberg table of its changes.

CREATE TABLE modak.change_feeds (
    feed_id         bigint      PRIMARY KEY,
    slot_name       text        NOT NULL,
    mode            text        NOT NULL CHECK (mode IN ('keys', 'rows', 'transactions')),
    keep            interval,
    namespace       text        NOT NULL,
    name            text        NOT NULL,
    location        text        NOT NULL,
    begins_lsn      bigint,
    expired_lsn     bigint      NOT NULL DEFAULT 0,
    error           text,
    swept_before    timestamptz,
    stats           jsonb,
    created_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.change_feeds IS 'Iceberg tables that hold the changes of mirrored tables';
COMMENT ON COLUMN modak.change_feeds.feed_id IS 'table_id of the mirrored table; 0: the transactions of the mirror';
CREATE UNIQUE INDEX modak_change_feeds_name_idx ON modak.change_feeds (namespace, name);

CREATE TABLE modak.feed_pins (
    pin_id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    feed_id         bigint      NOT NULL REFERENCES modak.change_feeds ON DELETE CASCADE,
    snapshot_id     bigint      NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz NOT NULL,
    reader          text        NOT NULL DEFAULT session_user || format(' in process %s', pg_backend_pid())
        || coalesce(', ' || nullif(current_setting('application_name', true), ''), ''),
    made_by         text        DEFAULT current_user
);
COMMENT ON TABLE modak.feed_pins IS 'Reads of change feeds in progress; their snapshots stay';
CREATE INDEX modak_feed_pins_feed_idx ON modak.feed_pins (feed_id, snapshot_id);
