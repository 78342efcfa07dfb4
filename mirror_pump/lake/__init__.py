"""The lake: Iceberg's files, tables and commits. Knows neither PostgreSQL's stream nor Spark."""
