"""Heap retention in the database: partitions, each step of their way out, and corrections."""
