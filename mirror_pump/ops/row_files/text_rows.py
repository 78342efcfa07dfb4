"""The rows of text files, CSV and JSON lines: which columns they have, and each block of them parsed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from mirror_pump.ops.row_files.csv_rows import TextLayout, csv_names, parse_csv, without_header
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.jsonl_rows import first_keys, parse_jsonl
from mirror_pump.ops.row_files.row_batch import RowBatch
from mirror_pump.ops.row_files.text_blocks import TextBlock


def named_blocks(blocks: Iterator[TextBlock], layout: TextLayout) -> tuple[tuple[str, ...] | None, Iterator[TextBlock]]:
    """The columns of a file, and its blocks, those of CSV without the header. Columns: those of the layout if it names
    any; else those of the header, or the keys of the first object, None if there is none. Raises InputError for a file
    without the header that it should have."""
    file = layout.file
    if file.format is FileFormat.CSV:
        first = next(blocks, None) if layout.form.header or not layout.names else None
        of_header = layout.names or csv_names(first, file, layout.form)
        return of_header, chain([] if first is None else [without_header(first)], blocks)
    names, passed = layout.names or None, list[TextBlock]()
    while names is None and (block := next(blocks, None)) is not None:
        passed.append(block)
        names = first_keys(block)
    return names, chain(passed, blocks)


def parsed(block: TextBlock, layout: TextLayout) -> RowBatch:
    """The rows of a block, which is released. Raises RowRefused for what is no CSV."""
    if block.file.format is FileFormat.CSV:
        batch = parse_csv(block, layout)
    else:
        batch = parse_jsonl(block, layout.names, subset=layout.subset)
    block.release()
    return batch
