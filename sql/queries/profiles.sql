-- Storage profiles (mirror_pump/source/catalog/profiles.py).

-- name: select
SELECT profile_name AS name, rtrim(warehouse, '/') AS warehouse, coalesce(lake_config, '{}') AS options, credential_ref,
       is_default
  FROM modak.storage_profiles ORDER BY profile_name;

-- name: of_table
SELECT storage_profile FROM modak.tables WHERE table_id = %(table_id)s;

-- name: lock
SELECT rtrim(warehouse, '/') FROM modak.storage_profiles WHERE profile_name = %(name)s FOR SHARE;

-- name: store
INSERT INTO modak.storage_profiles (profile_name, lake_format, warehouse, lake_config, credential_ref)
VALUES (%(name)s, 'iceberg', %(warehouse)s, %(options)s, %(credential_ref)s)
ON CONFLICT (profile_name) DO UPDATE
   SET warehouse = excluded.warehouse, lake_config = excluded.lake_config, credential_ref = excluded.credential_ref;

-- name: not_default
-- At no moment two of them: the index forbids it.
UPDATE modak.storage_profiles SET is_default = false WHERE is_default AND profile_name <> %(name)s;

-- name: set_default
UPDATE modak.storage_profiles SET is_default = true WHERE profile_name = %(name)s;

-- name: users
-- The number of registered tables of each profile.
SELECT storage_profile, count(*) FROM modak.tables GROUP BY storage_profile;
