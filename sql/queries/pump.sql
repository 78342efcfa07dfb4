-- What the pump reads from the catalog (mirror_pump/pipeline/session.py, registration.py).

-- name: slot
SELECT publication_name, system_identifier, timeline, database_name, applied_lsn
  FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: wal_end
SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint;

-- name: copying
SELECT count(*) FROM modak.mirror_tables WHERE slot_name = %(slot)s AND state = 'copying';

-- name: due_to_go_live
-- The F at which the next copied table may go live, if every chunk of it is in the lake.
SELECT min(live_after_lsn) FROM modak.mirror_tables WHERE slot_name = %(slot)s AND state = 'copying';

-- name: sender_timeout
SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout';
