"""`mirror-pump verify`: heap against lake."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import count_text, say, write_json
from mirror_pump.cli.terminal.progress import verify_progress
from mirror_pump.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "verify", (*SLOT, "master", *STORAGE))
    def verify(
        settings: Settings,
        tables: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TABLE",
                help=r"Names as Postgres reads them \[all live tables]",
                autocompletion=mirrored_tables,
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, as docs/cli-json.md describes it")] = False,
    ) -> int:
        """Compare every column of every row of the heap with the lake, at one F, while writes go on.

        Concurrent writes raise no false alarm, and one changed byte is found. A table whose columns or partitions
        change meanwhile is begun again, up to five times. Exit 1 if any table differs or could not be compared.

        Tables of up to 64 MiB are compared by DuckDB within the process (pip install 'mirror-pump[sql]'), larger ones
        by Spark, which takes some ten seconds to start. Both compare the same.
        """
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.ops.verify.verification import verify as compare

        with verify_progress() as show:
            report = compare(complete(settings), tables or (), observe=show)
        result: dict[str, Any] = report.to_json()
        if as_json:
            write_json(result)
        else:
            for table in result["tables"]:
                if table["problem"] is not None:
                    say(f"{table['table']}: NOT COMPARED ({table['problem']})")
                    continue
                rows = f"heap {count_text(table['heap_rows'])} rows, lake {count_text(table['lake_rows'])} rows"
                # One that was compared again was compared at another F.
                at = "" if table["frontier"] == result["frontier"] else f", at F = {table['frontier']}"
                say(f"{table['table']}: {'equal' if table['equal'] else 'DIFFERENT'} ({rows}{at})")
                for difference in table["differences"]:
                    say(f"  {_inline(difference)}")
            say(f"compared at F = {result['frontier']}")
        return 0 if report.equal else 1


def _inline(difference: Any) -> str:
    import orjson

    return orjson.dumps(difference).decode()
