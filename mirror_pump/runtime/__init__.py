"""What a process needs of itself and of its machine: threads, pauses, signals, memory, cores, private files, logs."""
