"""Files of rows, for ingests and loads: where they are, their formats, their records, and the texts of their values."""
