"""Manifest lists, manifests, and their entries: what this writes, and what any engine wrote."""
