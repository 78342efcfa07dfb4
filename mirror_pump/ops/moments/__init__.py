"""Moments that stay: all tables at one frontier, kept until they are dropped."""
