"""Whether the publication is there, publishes what the mirror needs, and has all of every table."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.errors import SourceError
from mirror_pump.model import TableMode
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, failure, ok
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.stream.publication import how_to_publish, not_whole
from mirror_pump.source.stream.slot import check_publication


def _run(site: Site) -> Iterator[Finding]:
    mirror = site.require_mirror()
    with site.connection() as connection:
        try:
            check_publication(connection, mirror.publication)
        except SourceError as error:
            yield failure(error)
            return
        gaps = not_whole(connection, mirror.slot)
        tables = [
            table
            for table in load_tables(connection, mirror.slot)
            if table.mode is TableMode.MIRRORED and not table.state.has_ended
        ]
    for table in tables:
        if table.table_id in gaps:
            yield failed(
                f"publication {mirror.publication} does not have all of {table.name}",
                how_to_publish(mirror.publication, table.name),
                str(table.name),
            )
    if not gaps:
        yield ok(f"publication {mirror.publication} has all of {len(tables)} tables")


PUBLICATION = DoctorCheck("publication", _run, needs=("catalog",))
