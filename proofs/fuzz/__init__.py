"""Fuzzing of what reads bytes that others wrote, guided by coverage."""
