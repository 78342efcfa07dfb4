-- The rights of the three roles of a mirror, none of which is a superuser:
--   admin    owns schema modak and the publication: init, register, unregister, reader, uninstall
--   pump     run, maintain, verify, resync, reconcile, status, retain
--   reader   reads the lake and the catalog
-- docs/roles.md has the whole set-up. To be run twice, in the mirror's database, once the roles exist:
--   psql -v admin=mirror_admin -v pump=mirror_pump -v reader=analyst -f roles.sql
-- before the first `mirror-pump init` by a role that may grant what sql/roles/admin.sql grants, and after each `mirror-pump init`
-- as the admin. Without `-v reader` it leaves readers alone. With `-v tiered_only=`, the first time, no role may stream: a mirror
-- of tiered tables alone needs that no more than a slot.
\set ON_ERROR_STOP on
-- What others have created in a schema of this session's path is not meant here.
SET search_path = pg_catalog, pg_temp;
SELECT to_regclass('modak.mirror_migrations') IS NOT NULL AS initialised \gset
\if :initialised
BEGIN;
\ir roles/pump.sql
\if :{?reader}
\ir roles/reader.sql
\endif
COMMIT;
\else
\ir roles/admin.sql
\endif
