"""Tables that tests of repeated copies and of schema changes create."""

from __future__ import annotations

PARTITIONED = (
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
    "INSERT INTO p SELECT generate_series(0, 19)",
)

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, n int, big text)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT g, 'v' || g, g, repeat('x', 3000) || g FROM generate_series(1, 300) g",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO other VALUES (1, 'one')",
)
