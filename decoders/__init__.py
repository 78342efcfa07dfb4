"""pgoutput bytes and Postgres text to Arrow. A leaf: standard library, numpy and pyarrow only."""
