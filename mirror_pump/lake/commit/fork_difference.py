"""Finds out what another engine did to a fork of a table (mirror_pump.lake.commit.forked_rewrite)."""

from __future__ import annotations

from dataclasses import replace

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, paths_of
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.manifests.manifest_entries import StoredEntry, written_file
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest, rows_have_ids


def fork_difference(base: LakeTable, fork: LakeTable, *, drop_deletes: bool) -> ForkedRewrite | None:
    """What an engine did to `fork`, which began as `base`; None if it did nothing.

    `drop_deletes`: also remove the base's deletes, because every data file that they may concern was rewritten, in the
    fork or before. Iceberg itself keeps a delete while any older data file exists, even if it does not apply to that
    file. Raises LakeError if the fork is no rewrite of the base, or has files that the mirror cannot describe.

    Of a table with deletion vectors only data files and equality deletes count. Position deletes that the engine wrote
    say of the data files that stay what those of the base do, which stay as well.
    """
    takes_positions = base.deletes.adds_files
    if not only_rewritten_since(fork.metadata, base.snapshot_id):
        raise LakeError(f"the rewrite of {base.metadata_location} changed rows", "report it: nothing was changed")
    by_manifest = Listing(base.storage).files(base.manifests)
    before = {file.path: file for files in by_manifest.values() for file in files}
    after: set[str] = set()
    data: list[WrittenFile] = []
    positions: list[WrittenFile] = []
    for manifest in fork.manifests:
        if manifest.path in by_manifest:
            after.update(file.path for file in by_manifest[manifest.path])
            continue
        for entry in stored_of(manifest, fork.storage) if manifest.live_files else ():
            after.add(entry.path)
            if entry.path not in before and (takes_positions or entry.content != FileContent.POSITION_DELETES):
                file = _described(entry, manifest, base)
                (data if file.content is FileContent.DATA else positions).append(file)
    removed = before.keys() - after
    if not takes_positions:
        removed = {path for path in removed if before[path].content is not FileContent.POSITION_DELETES}
    if drop_deletes:
        # Vectors go with their data files.
        removed |= {
            path for path, file in before.items() if file.content is not FileContent.DATA and file.vector is None
        }
    if not (removed or data or positions):
        return None
    return ForkedRewrite(
        data=tuple(data),
        positions=tuple(positions),
        removed=frozenset(removed),
        removed_data=frozenset(path for path in removed if before[path].content is FileContent.DATA),
        data_number=base.sequence_number,
        drops_deletes=drop_deletes,
        live_paths=paths_of(by_manifest),
        had_row_ids=rows_have_ids(base.manifests),
    )


def _described(entry: StoredEntry, manifest: Manifest, base: LakeTable) -> WrittenFile:
    # Its rows have their IDs from the files that it replaces, or get new ones when it lands.
    file = replace(written_file(entry), first_row_id=None)
    number = base.sequence_number if file.content is FileContent.DATA else entry.sequence_number
    if (
        entry.format != "PARQUET"
        or manifest.spec_id != base.spec_id
        or file.content is FileContent.EQUALITY_DELETES
        or entry.sequence_number != number
    ):
        raise LakeError(
            f"the rewrite of {base.metadata_location} made {entry.path} ({entry.format}, partition spec"
            f" {manifest.spec_id}, sequence number {entry.sequence_number}), which the mirror would not",
            "look for table properties that other engines have set, such as write.format.default",
        )
    return file
