"""What an engine cannot do with a mirrored table, by what `make engines` found, or its documentation says, and what the
table has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.model import MirroredTable
from mirror_pump.ops.reads.cloud_engines import CLOUD_ENGINES, CloudEngine
from mirror_pump.ops.reads.engine_answers import TITLES, Feature, Verdict, engine_answers
from mirror_pump.source.relations.column_choices import variant_columns

_REMARK = {
    Verdict.REFUSED: "{engine} refuses {feature} of {table}: {text}",
    Verdict.WRONG: "WRONG RESULTS: {engine} does not read {feature} of {table} rightly: {text}",
}


def engine_remarks(engine: str, table: MirroredTable) -> list[str]:
    """A sentence for each thing that the table has, or may get by the next commits, and that the engine refuses or
    reads wrongly. `engine`: as `connect --engine` names it."""
    cloud = CLOUD_ENGINES.get(engine)
    reader = cloud or engine_answers().get(engine)
    if reader is None:
        return []
    answers = reader.answers.get(table.format_version, {})
    remarks = [
        _REMARK[answer.verdict].format(
            engine=reader.name, feature=TITLES[feature], table=table.name, text=answer.text.rstrip(".")
        )
        for feature in features(table)
        if (answer := answers.get(feature)) is not None and answer.verdict in _REMARK
    ]
    return remarks if cloud is None else [*remarks, *_type_remarks(cloud, table)]


def _type_remarks(engine: CloudEngine, table: MirroredTable) -> Iterator[str]:
    """A sentence for each type whose values the engine reads otherwise, or not at all."""
    for kind, text in engine.types.items():
        columns = [
            column.name
            for column in table.columns
            if kind in {part.kind for part in (column.type, column.type.element) if part is not None}
        ]
        if columns:
            yield f"{engine.name}, {', '.join(columns)} of {table.name}: {kind} {text}"


def features(table: MirroredTable) -> Iterator[Feature]:
    """What readers meet in the lake table, now or after the next changes of rows and columns."""
    yield Feature.VALUES
    if any(column.type.element is not None for column in table.columns):
        yield Feature.LISTS
    yield Feature.CHANGED_COLUMNS
    yield Feature.EQUALITY_DELETES
    if table.partitioning is not None and table.partitioning.fields:
        yield Feature.PARTITIONS
        key = {column.field_id for column in table.key_columns}
        if not {column.field_id for column in table.partitioning.fields} <= key:
            yield Feature.GLOBAL_DELETES
    if table.format_version < VECTOR_VERSION:
        yield Feature.POSITION_DELETES
    else:
        yield from (Feature.VECTORS, Feature.UPGRADED, Feature.MOVED_ROWS, Feature.LINEAGE)
    if any(column.default is not None for column in table.columns):
        yield Feature.DEFAULTS
    if variant_columns(table.columns):
        yield Feature.VARIANT


def variant_remark(columns: Sequence[str]) -> str:
    """What variants mean for readers: which engines lose the table by them."""
    names: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for engine in engine_answers().values():
        answer = engine.answers.get(VECTOR_VERSION, {}).get(Feature.VARIANT)
        if answer is not None:
            names[answer.verdict].append(engine.name)
    what = f"column {columns[0]} is a variant" if len(columns) == 1 else f"columns {', '.join(columns)} are variants"
    parts = [f"{what}: {', '.join(names[Verdict.REFUSED])} cannot read the table at all"]
    if names[Verdict.WRONG]:
        parts.append(f"{', '.join(names[Verdict.WRONG])} shows documents otherwise")
    return "; ".join([*parts, f"only {', '.join(names[Verdict.EXACT])} reads them exactly"])
