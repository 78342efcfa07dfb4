-- The privileges of the roles `admin` and `pump` that lie outside of schema modak. To be run before the first `mirror-pump
-- init`, by a role that may grant them: the master user of a managed service, or a superuser. Can be run again.

-- What others have created in a schema of this session's path is not meant here.
SET search_path = pg_catalog, pg_temp;

-- To stream changes is an attribute of a role. On Amazon RDS it is a membership. With `-v tiered_only=` the roles get neither: a
-- mirror of tiered tables alone has no stream.
\if :{?tiered_only}
\else
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication') AS rds \gset
\if :rds
GRANT rds_replication TO :"admin", :"pump";
\else
ALTER ROLE :"admin" REPLICATION;
ALTER ROLE :"pump" REPLICATION;
\endif
\endif

-- Schema modak and the publication.
GRANT CREATE ON DATABASE :"DBNAME" TO :"admin";

-- When other sessions' transactions began: `status` names those that hold back WAL, and retention those that it waits for.
-- Without it they count as open for ever.
SELECT format('GRANT pg_read_all_stats TO %I', :'pump')
 WHERE pg_has_role('pg_read_all_stats', 'MEMBER WITH ADMIN OPTION') \gexec

-- In other sessions of these roles, such as psql's: who may create functions and operators in a schema of the search path could
-- have these roles run them. The program's own sessions have a path of their own.
ALTER ROLE :"admin" IN DATABASE :"DBNAME" SET search_path = pg_catalog;
ALTER ROLE :"pump" IN DATABASE :"DBNAME" SET search_path = pg_catalog;
