"""Fourth stage: rows of the lake in data files, rows of the heap and all keys in temporary ones."""
