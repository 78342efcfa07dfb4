"""One module per command. Heavy imports happen inside the functions: `--help` and `status` answer at once."""
