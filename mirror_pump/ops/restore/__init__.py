"""`unregister --restore-heap`: brings rows below the cut-line back into partitions of the heap."""
