"""Converts pgoutput bytes and Postgres text to Arrow. Imports only the standard library, numpy and pyarrow."""
