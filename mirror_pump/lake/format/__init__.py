"""Iceberg's data files and delete files, their schemas and bounds."""
