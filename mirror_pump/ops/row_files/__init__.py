"""Files of rows, for whoever reads them: where they are, their formats and compression, and where their records end."""
