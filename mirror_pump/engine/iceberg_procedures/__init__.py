"""Iceberg's own maintenance procedures, run by Spark."""
