"""What users see: output, progress, status, the shell, and how signals end a command."""
