"""Where a row still is: in the heap, in corrections, and in files of the lake that a state of the table needs."""
