-- A mirror of tiered tables alone needs no replication slot, no publication and no stream. Without them only the pump can tell
-- that the database went back behind what the lake was published; it notes that here until somebody has reconciled.

ALTER TABLE modak.mirror_slots
    ADD COLUMN streams boolean NOT NULL DEFAULT true,
    ADD COLUMN went_back_at timestamptz;
