"""Iceberg's files: metadata, manifests, data and delete files, schemas and bounds."""
