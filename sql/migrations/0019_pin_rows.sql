-- Readers may delete their pins, and who may delete from a table may lock it in any mode: the mirror would wait for a reader. So
-- the rows move into tables on which readers have SELECT and INSERT, and the names that readers know become views of these.
ALTER TABLE modak.read_pins RENAME TO read_pin_rows;
ALTER TABLE modak.feed_pins RENAME TO feed_pin_rows;
CREATE VIEW modak.read_pins AS SELECT * FROM modak.read_pin_rows;
CREATE VIEW modak.feed_pins AS SELECT * FROM modak.feed_pin_rows;
DROP TRIGGER IF EXISTS check_pin ON modak.read_pin_rows;
DROP TRIGGER IF EXISTS check_feed_pin ON modak.feed_pin_rows;

-- Each role may do with the views what it might do with the tables, with all columns or some. On the tables, only those who
-- maintain the mirror keep more than a reader needs. A change through a view reads all columns of the table behind it.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT p.rows, p.pins, a.privilege_type AS privilege, g.columns, a.grantee,
               CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee_name
          FROM (VALUES ('modak.read_pin_rows'::regclass, 'modak.read_pins'::regclass),
                       ('modak.feed_pin_rows'::regclass, 'modak.feed_pins'::regclass)) AS p(rows, pins)
          JOIN pg_class c ON c.oid = p.rows
         CROSS JOIN LATERAL (
                SELECT c.relacl, ''
                 UNION ALL
                SELECT b.attacl, format('(%I)', b.attname) FROM pg_attribute b WHERE b.attrelid = c.oid AND b.attacl IS NOT NULL
               ) AS g(acl, columns)
         CROSS JOIN LATERAL aclexplode(g.acl) a
         WHERE a.grantee <> c.relowner
    LOOP
        IF granted.privilege IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') THEN
            EXECUTE format('GRANT %s %s ON %s TO %s', granted.privilege, granted.columns, granted.pins, granted.grantee_name);
        END IF;
        IF granted.privilege IN ('SELECT', 'UPDATE', 'DELETE') THEN
            EXECUTE format('GRANT SELECT ON %s TO %s', granted.rows, granted.grantee_name);
        END IF;
        IF granted.privilege NOT IN ('SELECT', 'INSERT')
           AND (granted.grantee = 0 OR NOT has_table_privilege(granted.grantee, 'modak.cutline', 'UPDATE')) THEN
            EXECUTE format('REVOKE %s %s ON %s FROM %s CASCADE', granted.privilege, granted.columns, granted.rows,
                           granted.grantee_name);
        END IF;
    END LOOP;
END $$;
