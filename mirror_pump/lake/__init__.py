"""The lake: Iceberg's files, metadata and commits. Knows neither PostgreSQL's stream nor Spark."""
