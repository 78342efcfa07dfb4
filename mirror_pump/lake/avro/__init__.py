"""Avro container files, as manifests and manifest lists are."""
