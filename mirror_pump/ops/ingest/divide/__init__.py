"""Third stage: which rows go to the lake, and which to the heap."""
