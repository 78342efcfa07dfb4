-- A publication of the whole database, as blue/green deployments and pg_createsubscriber make it, refuses UPDATE and DELETE of
-- tables without a replica identity.
ALTER TABLE modak.mirror_load_rows REPLICA IDENTITY FULL;
ALTER TABLE modak.mirror_secret REPLICA IDENTITY FULL;
ALTER TABLE modak.schema_meta REPLICA IDENTITY FULL;
