"""From the replication stream to what each batch does to each table."""
