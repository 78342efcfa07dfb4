-- Patterns of tables that join the mirror by themselves when they are created.
CREATE TABLE modak.mirror_followed (
    slot_name       text        NOT NULL REFERENCES modak.mirror_slots (slot_name) ON DELETE CASCADE,
    pattern         text        NOT NULL,
    excluded        text[]      NOT NULL,
    profile_name    text,
    PRIMARY KEY (slot_name, pattern)
);
COMMENT ON TABLE modak.mirror_followed IS 'Patterns of tables that are registered when they are created';

CREATE TABLE modak.mirror_not_joined (
    table_id        bigint      PRIMARY KEY,
    slot_name       text        NOT NULL REFERENCES modak.mirror_slots (slot_name) ON DELETE CASCADE,
    error           text,
    since           timestamptz NOT NULL DEFAULT clock_timestamp(),
    looked_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE modak.mirror_not_joined IS 'Tables that match such a pattern and are not registered: refused ones, and those that were unregistered';
