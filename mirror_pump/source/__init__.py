"""PostgreSQL: its connections, streams, catalogs and heaps."""
