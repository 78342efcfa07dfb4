"""REPACK (CONCURRENTLY) of PostgreSQL 19, and before what it leaves behind: a table in another file, with rows that an
older snapshot does not see, without any event. Unlike VACUUM FULL it does not keep which transaction wrote a row.
"""

from __future__ import annotations

from typing import LiteralString

from mirror_pump.testing.installation import major_version

_SWAPPED = """
DO $$
DECLARE
    old regclass := '{table}';
    new regclass;
BEGIN
    LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
    CREATE TABLE public.repacked (LIKE {table} INCLUDING ALL);
    INSERT INTO public.repacked SELECT * FROM {table};
    new := 'public.repacked';
    -- Heaps, and their only indexes, exchange their files; the TOAST tables exchange their owners.
    UPDATE pg_class c SET relfilenode = o.relfilenode
      FROM (SELECT a.oid, b.relfilenode FROM pg_class a JOIN pg_class b
                ON (a.oid, b.oid) IN ((old, new), (new, old))
            UNION ALL
            SELECT a.indexrelid, b.relfilenode FROM pg_index a JOIN pg_index i
                ON (a.indrelid, i.indrelid) IN ((old, new), (new, old)) JOIN pg_class b ON b.oid = i.indexrelid) o
     WHERE c.oid = o.oid;
    UPDATE pg_depend d SET refobjid = CASE WHEN d.refobjid = old THEN new ELSE old END
      FROM pg_class c WHERE c.oid IN (old, new) AND d.classid = 'pg_class'::regclass AND d.objid = c.reltoastrelid
       AND d.refclassid = 'pg_class'::regclass AND d.refobjid IN (old, new);
    UPDATE pg_class c SET reltoastrelid = o.reltoastrelid
      FROM (SELECT a.oid, b.reltoastrelid FROM pg_class a JOIN pg_class b
                ON (a.oid, b.oid) IN ((old, new), (new, old))) o
     WHERE c.oid = o.oid;
    DROP TABLE public.repacked;
END $$
"""


def repack(table: LiteralString) -> LiteralString:
    """The statement, for a table with one index."""
    if major_version() >= 19:
        return f"REPACK (CONCURRENTLY) {table}"
    return _SWAPPED.replace("{table}", table)
