"""The command line. Thin: it reads arguments, calls what is below, and prints."""
