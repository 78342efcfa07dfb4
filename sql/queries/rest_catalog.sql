-- The mirror as Iceberg's REST catalog shows it, and the leases of its moments (mirror_pump/source/catalog/served_tables.py).

-- name: frontier
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;
