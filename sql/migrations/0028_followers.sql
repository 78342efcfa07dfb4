-- Catalogs of others in which the tables' new metadata is registered after each publish (docs/followers.md).
CREATE TABLE modak.followers (
    slot_name         text        NOT NULL REFERENCES modak.mirror_slots (slot_name) ON DELETE CASCADE,
    name              text        NOT NULL,
    follower_id       uuid        NOT NULL DEFAULT gen_random_uuid(),
    kind              text        NOT NULL,
    options           jsonb       NOT NULL,
    credential_ref    text,
    namespace_pattern text        NOT NULL,
    table_pattern     text        NOT NULL,
    added_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    frontier          bigint,
    reached_at        timestamptz,
    examined_at       timestamptz,
    moves_together    boolean,
    error             text,
    behind_since      timestamptz,
    removed_at        timestamptz,
    PRIMARY KEY (slot_name, name)
);
COMMENT ON TABLE modak.followers IS 'Catalogs of others that show the mirrored tables, and how far each has followed';

CREATE TABLE modak.follower_tables (
    slot_name          text   NOT NULL,
    follower           text   NOT NULL,
    table_id           bigint NOT NULL,
    start_lsn          bigint NOT NULL,
    namespace          text[] NOT NULL,
    name               text   NOT NULL,
    table_uuid         text   NOT NULL,
    directory          text   NOT NULL,
    snapshot_id        bigint,
    next_snapshot_id   bigint,
    published_location text,
    metadata_location  text,
    error              text,
    PRIMARY KEY (slot_name, follower, table_id, start_lsn),
    FOREIGN KEY (slot_name, follower) REFERENCES modak.followers (slot_name, name) ON DELETE CASCADE
);
COMMENT ON TABLE modak.follower_tables IS 'What each of these catalogs shows of a table, or why it does not follow there';
