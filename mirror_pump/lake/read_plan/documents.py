"""A plan as a JSON document."""

from __future__ import annotations

from mirror_pump.lake.metadata.table_documents import Json, plain_value
from mirror_pump.lake.read_plan.delete_index import DeleteFile
from mirror_pump.lake.read_plan.planned_files import ReadPlan


def plan_document(plan: ReadPlan) -> Json:
    """The files of a plan and what decided it."""
    counts = plan.counts
    return {
        "snapshot_id": None if plan.snapshot_id is None else str(plan.snapshot_id),
        "predicate": str(plan.predicate),
        "manifests": {
            "total": counts.manifests,
            "opened": counts.manifests_opened,
            "skipped": counts.manifests_skipped,
        },
        "entries": {"seen": counts.entries_seen, "kept": counts.entries_kept},
        "deletes": {"seen": counts.deletes_seen, "kept": counts.deletes_kept},
        "records": plan.records,
        "size_bytes": plan.size_bytes,
        "files": [
            {
                "path": file.path,
                "format": file.format,
                "records": file.records,
                "size_bytes": file.size_bytes,
                "spec_id": file.spec_id,
                "partition": plain_value(file.partition),
                "sequence_number": file.sequence_number,
                "position_deletes": [_delete(delete) for delete in file.position_deletes],
                "equality_deletes": [_delete(delete) for delete in file.equality_deletes],
                "residual": str(file.residual),
            }
            for file in plan.files
        ],
    }


def _delete(file: DeleteFile) -> Json:
    return {"path": file.path, "records": file.records, "sequence_number": file.sequence_number}
