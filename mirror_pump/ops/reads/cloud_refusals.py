"""What a cloud's engine cannot do with the lake or a table now, so that `connect` prints no statements for it."""

from __future__ import annotations

from urllib.parse import urlsplit

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.document.snapshot_summary import SnapshotSummary, Total
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.model import MirroredTable
from mirror_pump.ops.reads.cloud_engines import CloudEngine, Way
from mirror_pump.ops.reads.engine_answers import Feature, Verdict
from mirror_pump.source.relations.column_choices import variant_columns

_OWN_S3 = (".amazonaws.com", ".amazonaws.com.cn")


def way_of(engine: CloudEngine, uri: str | None) -> Way:
    """The way for which `connect` prints statements: the REST door if its address is given, else another. Raises
    UsageError if the engine cannot go it."""
    if uri is None:
        return next(way for way in engine.statements if way is not Way.REST)
    if Way.REST not in engine.statements:
        raise UsageError(
            f"{engine.name} attaches no REST catalog of yours",
            f"leave out --rest, for its settings by a {next(iter(engine.statements))}",
        )
    if urlsplit(uri).scheme != "https":
        raise UsageError(
            f"{engine.name} is outside of your network, and {uri} has no TLS",
            "put a proxy with TLS that it can reach in front of `mirror-pump serve`, and give that one's https:// URI",
        )
    return Way.REST


def refuse_location(engine: CloudEngine, root: str, endpoint: str | None) -> None:
    """Raises UsageError if the engine does not reach the files below `root`."""
    where, reach = root, " or ".join(f"{scheme}://" for scheme in engine.schemes)
    if root.partition("://")[0] in engine.schemes:
        host = urlsplit(endpoint or "").hostname
        if host is None or not engine.only_own_s3 or host.endswith(_OWN_S3):
            return
        where, reach = f"{root} at {endpoint}", "AWS itself"
    raise UsageError(
        f"{engine.name} does not reach the lake, which is in {where}: it reads {reach}",
        "register the tables with a storage profile that it reaches, and name that with --profile",
    )


def refuse_table(engine: CloudEngine, table: MirroredTable, summary: SnapshotSummary | None) -> None:
    """Raises TableError if the engine does not read the table as it is: `summary` is the current snapshot's, None if it
    is not to be had. What may come with later changes is left to remarks."""
    answers = engine.answers.get(table.format_version)
    again = f"`mirror-pump unregister {table.name.shell}`, then `mirror-pump register {table.name.shell}"
    same = "with the other options that it has (`mirror-pump export`)"
    if answers is None:
        raise TableError(
            f"{table.name} has Iceberg's format version {table.format_version}, which {engine.name} does not read",
            f"copy it anew, by {again} --format-version 2` {same}, or read it with another engine",
        )
    refused = {feature: answer.text for feature, answer in answers.items() if answer.verdict is Verdict.REFUSED}
    variants = variant_columns(table.columns)
    if variants and Feature.VARIANT in refused:
        raise TableError(
            f"{engine.name} does not read {table.name}, whose column {variants[0]} is a variant",
            f"copy it anew with documents as text, by {again}` {same}, or read it with another engine",
        )
    deletes = summary or SnapshotSummary({})
    if pending := Feature.EQUALITY_DELETES in refused and deletes.total(Total.EQUALITY_DELETES):
        raise TableError(
            f"{table.name} has {pending:,} equality deletes now: {engine.name} does not read these,"
            f" {refused[Feature.EQUALITY_DELETES]}",
            f"wait until the pump has made position deletes of them (`mirror-pump status`), or run"
            f" `mirror-pump maintain {table.name.shell}`; more --index-memory avoids them",
        )
    if pending := Feature.POSITION_DELETES in refused and deletes.total(Total.POSITION_DELETES):
        raise TableError(
            f"{table.name} has {pending:,} position deletes: {engine.name} does not read these,"
            f" {refused[Feature.POSITION_DELETES]}",
            f"`mirror-pump policy set {table.name.shell} format_version {VECTOR_VERSION} --yes`",
        )
