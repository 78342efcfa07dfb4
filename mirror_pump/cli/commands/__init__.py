"""One module per command. Heavy imports are inside the functions, so that `--help` and `status` answer at once."""
