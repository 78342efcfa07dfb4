-- Rows of Iceberg's JDBC catalog (mirror_pump/lake/commit/catalog.py). Layout V1 marks tables; older rows have NULL there. Views
-- of the same name are left unchanged.

-- name: load
SELECT metadata_location FROM modak.iceberg_tables
 WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL);

-- name: insert
INSERT INTO modak.iceberg_tables
       (catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type)
VALUES (%s, %s, %s, %s, NULL, 'TABLE');

-- name: replace
-- Another table under the same name.
UPDATE modak.iceberg_tables SET metadata_location = %s, previous_metadata_location = NULL
 WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL);

-- name: swap
UPDATE modak.iceberg_tables SET metadata_location = %s, previous_metadata_location = metadata_location
 WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND metadata_location = %s
   AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL);

-- name: rename
UPDATE modak.iceberg_tables SET table_namespace = %s, table_name = %s
 WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s RETURNING metadata_location;

-- name: delete
DELETE FROM modak.iceberg_tables
 WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL);

-- name: ensure_namespace
INSERT INTO modak.iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
VALUES (%s, %s, 'exists', 'true') ON CONFLICT DO NOTHING;

-- name: delete_namespace
DELETE FROM modak.iceberg_namespace_properties n
 WHERE catalog_name = %s AND namespace = %s
   AND NOT EXISTS (SELECT FROM modak.iceberg_tables t
                    WHERE t.catalog_name = n.catalog_name AND t.table_namespace = n.namespace);

-- name: list
SELECT table_namespace AS namespace, table_name AS name, metadata_location FROM modak.iceberg_tables
 WHERE catalog_name = %s AND metadata_location IS NOT NULL AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL);

-- name: namespaces
SELECT DISTINCT namespace FROM modak.iceberg_namespace_properties WHERE catalog_name = %s;

-- name: namespace_properties
SELECT property_key, property_value FROM modak.iceberg_namespace_properties
 WHERE catalog_name = %s AND namespace = %s AND property_key <> 'exists';

-- name: remove_properties
DELETE FROM modak.iceberg_namespace_properties WHERE catalog_name = %s AND namespace = %s AND property_key = ANY (%s);

-- name: set_property
INSERT INTO modak.iceberg_namespace_properties (catalog_name, namespace, property_key, property_value) VALUES (%s, %s, %s, %s)
    ON CONFLICT (catalog_name, namespace, property_key) DO UPDATE SET property_value = EXCLUDED.property_value;

-- Of the transaction: other threads of the process wait for its connection. Then the client tries again.
-- name: limit_waits
SET LOCAL lock_timeout = '5s';

-- One writer at a time compares directories. Rows are read and written meanwhile; VACUUM, and what changes the table itself, takes
-- a lock that excludes this one.
-- name: lock_additions
LOCK TABLE modak.iceberg_namespace_properties IN SHARE UPDATE EXCLUSIVE MODE;

-- name: all_tables
SELECT catalog_name, table_namespace, table_name, metadata_location FROM modak.iceberg_tables WHERE metadata_location IS NOT NULL;

-- The ID of the transaction that runs, by which another session asks for its outcome.
-- name: transaction_id
SELECT pg_current_xact_id()::text;

-- name: transaction_status
SELECT pg_xact_status(%s::xid8);

-- Which of these tables only the pump may change.
-- name: mirrored
SELECT lake_table_ref FROM modak.tables WHERE lake_table_ref = ANY (%(names)s)
 UNION ALL
SELECT namespace || '.' || name FROM modak.change_feeds WHERE namespace || '.' || name = ANY (%(names)s);
