"""Iceberg's metadata: the table metadata document, its snapshots, manifest lists and manifests. No other package knows
their keys."""
