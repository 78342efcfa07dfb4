"""Spark itself: its Java, session and Python workers, and the runner that submits tasks."""
