"""The publish transaction, and what is staged in the lake before it."""
