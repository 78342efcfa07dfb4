"""Heap retention: how old partitions leave the heap, and how corrections reach the lake."""
