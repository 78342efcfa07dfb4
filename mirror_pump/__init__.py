"""Mirrors PostgreSQL tables into Apache Iceberg by logical replication, with a proven frontier."""
