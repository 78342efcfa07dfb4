-- Where `run --drain` has taken the slot: nothing that concerns the mirror was committed between the frontier and there.
ALTER TABLE modak.mirror_slots ADD COLUMN drained_lsn bigint;
