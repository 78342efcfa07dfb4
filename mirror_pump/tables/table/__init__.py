"""The public tables: commits with retries, history, transactions."""
