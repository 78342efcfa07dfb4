"""The generated part of docs/table-options.md: the options of a table, and the pairs that are refused.

`python -m tests.support.table_options_page` writes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.source.options.option_values import name_of
from mirror_pump.source.options.table_option import Alteration, Panel, TableOption
from mirror_pump.source.options.table_options import OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "table-options.md"
_BEGIN = "<!-- options: begin -->\n"
_END = "<!-- options: end -->\n"


def written(page: str) -> str:
    """The page with its part as the entries say it."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "".join((before, _BEGIN, *(line + "\n" for line in _lines()), _END, after))


def _lines() -> Iterator[str]:
    for panel in Panel:
        options = [option for option in OPTIONS if option.panel is panel]
        if not options:
            continue
        title = "First of all" if panel is Panel.FIRST else panel.value
        yield from (f"## {title}", "", "| option | meaning |", "|---|---|")
        yield from (f"| {_shown(option)} | {_cell(option.meaning)}{_alteration(option)} |" for option in options)
        yield ""
    yield from ("## What does not go together", "", "| option | not with | since |", "|---|---|---|")
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    for option in OPTIONS:
        if option.requires:
            without = " and ".join(f"`{name_of(key)}`" for key in option.requires)
            refused[f"tables without {without}", option.required_since or "it is about these"].append(option.name)
        for conflict in option.conflicts:
            others = ", ".join(f"`{name_of(key)}`" if "--" in name_of(key) else name_of(key) for key in conflict.others)
            refused[others, conflict.reason].append(option.name)
    for (others, reason), names in refused.items():
        yield f"| {', '.join(f'`{name}`' for name in names)} | {others} | {_cell(reason)} |"


def _alteration(option: TableOption) -> str:
    return "" if option.alter is Alteration.ANEW else f" (changed by `{option.alter.value}`)"


def _shown(option: TableOption) -> str:
    value = f" {option.metavar}" if option.metavar else ""
    return f"`{option.flag}{_cell(value)}`"


def _cell(text: str) -> str:
    return text.replace("\\[", "[").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
