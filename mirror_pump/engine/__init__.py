"""Spark: its sessions, the one place that submits tasks, and what tasks do."""
