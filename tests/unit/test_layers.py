"""Imports point one way (docs/architecture.md): every import statement of the code is parsed and checked."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]

_BOTTOM = {"settings", "storage_kinds", "runtime", "values", "database", "decoders", "sql"}
_MIRROR = {"ops", "pipeline", "engine", "source", "lake", *_BOTTOM}

# Layer -> the layers that it may import besides itself, from the bottom to the top. `values` is every module directly
# in mirror_pump/ (model, errors, and the lives of tables, partitions and operations). A package that is not named here
# fails, so a new one has to take its place in the order.
_BELOW = {
    "decoders": set[str](),
    "sql": set[str](),
    "database": {"sql"},
    "values": {"database", "decoders", "sql"},
    "runtime": {"values", "database", "decoders"},
    "storage_kinds": {"values", "database"},
    "settings": {"storage_kinds", "runtime", "values", "database", "decoders", "sql"},
    "source": _BOTTOM,
    "lake": _BOTTOM,
    # A library of its own: what the mirror is made of does without it.
    "tables": {"lake", *_BOTTOM},
    "engine": {"source", "lake", *_BOTTOM},
    "pipeline": {"engine", "source", "lake", *_BOTTOM},
    "ops": _MIRROR - {"ops"},
    # For users' programs, as `testing` is for users' tests and ours, and for the demo, which uses the command line.
    "spark": _MIRROR,
    "rest_catalog": {"tables", *_MIRROR},
    "monitoring": _MIRROR,
    "http": {"monitoring", "rest_catalog", *_MIRROR},
    "cli": {"http", "monitoring", "rest_catalog", "tables", *_MIRROR},
    "testing": {"cli", "spark", *_MIRROR},
}

# Rooms inside a layer -> the rooms of the same layer that they may import. A module directly in the layer's package is
# below all rooms, except in `cli`, where main.py is the top, and in `tables`, whose __init__.py passes on what is
# public. Layers without rooms are not listed.
_ROOMS = {
    "source": {
        "stream": set[str](),
        "heap": set[str](),
        "relations": {"stream"},
        "catalog": {"stream", "relations"},
        "retention": {"relations"},
        "loads": {"relations"},
        "options": {"relations", "catalog", "retention"},
    },
    "lake": {
        "storage": set[str](),
        "format": {"storage"},
        "avro": set[str](),
        "document": {"storage", "format"},
        "manifests": {"storage", "format", "avro", "document"},
        "contents": {"storage", "format", "document", "manifests"},
        "key_index": {"format"},
        "deletes": {"storage", "format", "document", "manifests", "contents"},
        "commit": {"storage", "format", "document", "manifests", "contents", "deletes", "key_index"},
    },
    "tables": {
        "metadata": set[str](),
        "catalogs": set[str](),
        "read_plan": {"metadata"},
        "table": {"metadata", "catalogs", "read_plan"},
    },
    "engine": {
        "ingest": set[str](),
        "spark_runtime": {"ingest"},
        "lake_reads": set[str](),
        "rewrite": set[str](),
        "comparison": {"ingest", "lake_reads"},
        "restore": {"comparison"},
        "iceberg_procedures": {"spark_runtime"},
    },
    "pipeline": {
        "landing": set[str](),
        "operations": {"landing"},
        "flow": {"landing", "operations"},
        "copy": {"landing", "operations", "flow"},
        "upkeep": {"landing", "operations", "flow"},
        "missing_files": {"landing", "operations", "flow"},
        "key_index": {"landing", "operations", "flow", "upkeep"},
        "feeds": {"landing", "operations", "flow", "missing_files"},
        "publish": {"landing", "operations", "flow", "feeds", "key_index", "missing_files"},
        "schema": {"landing", "operations", "flow", "upkeep", "key_index", "publish"},
        "stream": {"landing", "operations", "flow", "feeds", "missing_files", "publish", "schema"},
        "retention": {"landing", "operations", "flow", "upkeep", "key_index"},
        "session": {
            "landing",
            "operations",
            "flow",
            "copy",
            "upkeep",
            "key_index",
            "missing_files",
            "publish",
            "schema",
            "stream",
            "retention",
        },
    },
    "ops": {
        "setup": set[str](),
        "maintenance": set[str](),
        "status": {"setup", "maintenance"},
        "retain": {"maintenance"},
        "restore": set[str](),
        "register": {"retain", "restore"},
        "row_files": set[str](),
        "ingest": {"row_files"},
        "resync": {"register"},
        "where": {"register"},
        "reads": {"setup", "status"},
        "moments": {"reads"},
        "follow": {"setup"},
        "changes": {"setup", "status", "reads"},
        "verify": {"status", "resync", "changes"},
        "doctor": {"setup", "status", "follow"},
        "plan": {"doctor"},
        "reconcile": {"verify"},
        "clients": set[str](),
        "load": {"row_files", "clients"},
    },
    "cli": {"terminal": set[str](), "arguments": {"terminal"}, "commands": {"terminal", "arguments"}},
}

_SMALL = 70
"""Lines of a small module."""
_SEAMS = {
    "mirror_pump.engine.comparison.differing_chunks": "runs in tasks, and its user plans them",
    "mirror_pump.lake.commit.rebase": "Iceberg's documents are a matter of the lake, pointers of its user",
    "mirror_pump.lake.deletes.forms": "the one place that names all forms of deletes",
    "mirror_pump.ops.doctor.followers": "each subject of the doctor has a module",
    "mirror_pump.ops.maintenance.maintainer_process": "starts a process, and imports nothing of what that runs",
    "mirror_pump.ops.duckdb_files": "needs fsspec, which a lake in S3 does without",
    "mirror_pump.ops.reads.kept_reads": "a read of moments, beside those of the present",
    "mirror_pump.ops.register.table_follower": "registers tables, for the command that runs a pump",
    "mirror_pump.pipeline.operations.fill_columns": "each operation has a module",
    "mirror_pump.source.heap.key_condition": "SQL for heaps",
}
"""Small modules with one user, and why they are apart."""
_TOO_LONG_WITH = {
    "decoders.keys": "decoders.segment",
    "decoders.toast": "decoders.segment",
    "mirror_pump.pipeline.stream.segment_transactions": "mirror_pump.pipeline.stream.assembler",
}
"""Others, whose user is long without them."""

_VALUES = "Values that many rooms share, errors, and the life of a table."
"""What modules directly in mirror_pump/ are."""

_DOCUMENT = _ROOT / "docs" / "architecture.md"
_HEADING = "\n## The rooms\n"
"""Heading of the document's last section, which is made from the tables above: `python tests/unit/test_layers.py`."""

_DECODERS_NEED = {"numpy", "pyarrow"}
"""Besides the standard library: the decoders run inside tasks, wherever those are."""


def _modules(root: Path) -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    found = {}
    for package in ("decoders", "mirror_pump", "sql"):
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _layer(module: str) -> str:
    package, _, rest = module.partition(".")
    if package != "mirror_pump":
        return package
    head = rest.partition(".")[0]
    # A package of mirror_pump that _BELOW does not know keeps its name, and is refused because of it.
    return head if (_ROOT / "mirror_pump" / head).is_dir() and head else "values"


def _imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Dotted names that a module imports anywhere, also in functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            # `from package import module` names a module; `from module import name` does too, and the name is dropped.
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _graph(root: Path) -> dict[str, set[str]]:
    """Module -> every dotted name that it imports; names that are not our modules stand for other packages. Nothing
    changes it: all tests of this module share it."""
    modules = _modules(root)
    graph = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        graph[name] = set(_imports(tree, name, is_package=path.name == "__init__.py"))
    return graph


def _violations(graph: dict[str, set[str]]) -> list[str]:
    wrong = []
    for module, imported in sorted(graph.items()):
        layer = _layer(module)
        if layer not in _BELOW:
            wrong.append(f"{module}: the layer {layer} has no place in the order")
            continue
        for name in sorted(imported):
            package = name.partition(".")[0]
            if package not in ("decoders", "mirror_pump", "sql"):
                if layer == "decoders" and package not in sys.stdlib_module_names | _DECODERS_NEED:
                    wrong.append(f"{module} imports {name}: decoders need {sorted(_DECODERS_NEED)} only")
                continue
            if name == "mirror_pump":
                continue
            below = _layer(name)
            if below != layer and below not in _BELOW[layer]:
                wrong.append(f"{module} ({layer}) imports {name} ({below})")
            elif below == layer in _ROOMS and (reason := _room_violation(module, name, _ROOMS[layer])):
                wrong.append(reason)
    return wrong


def _room(module: str, rooms: Collection[str]) -> str | None:
    """The room of a module; None for one directly in its layer's package."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in rooms else None


def _room_violation(module: str, imported: str, rooms: Mapping[str, Collection[str]]) -> str | None:
    """Why a module must not import another of its own layer; None if it may."""
    room, other = _room(module, rooms), _room(imported, rooms)
    if other is None or other == room or module in ("mirror_pump.cli.main", "mirror_pump.tables"):
        return None
    if room is None:
        return f"{module} is below all rooms of its layer and imports {imported}"
    return None if other in rooms[room] else f"{module} (room {room}) imports {imported} (room {other})"


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of modules that import each other; empty if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for name in sorted(graph[module] & graph.keys()):
            # A package's own name is imported on the way to each of its modules; only an __init__ with imports counts.
            if name != module and not module.startswith(name + ".") and (found := visit(name)):
                return found
        path.pop()
        done.add(module)
        return []

    for module in sorted(graph):
        if found := visit(module):
            return found
    return []


def _importers(graph: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """The modules that import each module."""
    importers: dict[str, set[str]] = {module: set() for module in graph}
    for module, names in graph.items():
        for name in graph.keys() & names:
            importers[name].add(module)
    return importers


def test_a_small_module_has_several_users() -> None:
    """One with a single user is read together with it, and belongs into it: each file costs a reader a name, a first
    line and imports. These are the exceptions."""
    importers = _importers(_graph(_ROOT))
    small = {
        name
        for name, path in _modules(_ROOT).items()
        if path.name != "__init__.py"
        and len(importers[name]) == 1
        and len(path.read_text(encoding="utf-8").splitlines()) < _SMALL
    }
    assert small <= _SEAMS.keys() | _TOO_LONG_WITH.keys(), "fold it into its user, or say here why not"
    assert small >= _SEAMS.keys() | _TOO_LONG_WITH.keys(), "it is no exception any more"


def test_imports_point_downwards() -> None:
    graph = _graph(_ROOT)
    assert len(graph) > 30, "the project's modules were not found"
    assert _violations(graph) == []


def test_what_is_imported_is_declared() -> None:
    """A package that happens to be installed here may be missing for users."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {_distribution(text) for text in project["dependencies"]}
    extras = project["optional-dependencies"]
    demo = {_distribution(text) for text in (*extras["demo"], *extras["sql"])}
    # `sql`, which the extra is for, and `verify`, which works without it.
    modules = (
        *("query", "query_results", "scan_conditions", "statement_errors", "statement_moments", "statement_tables"),
        *("kept_reads", "views"),
    )
    reads = {f"mirror_pump.ops.reads.{name}" for name in modules}
    moments = {f"mirror_pump.ops.moments.{name}" for name in ("digests", "moment_reader")}
    verify = {f"mirror_pump.ops.verify.{name}" for name in ("compare_duckdb", "comparison_engines", "feed_replay")}
    sql = {
        "mirror_pump.ops.duckdb_connection",
        "mirror_pump.ops.duckdb_files",
        "mirror_pump.ops.changes.change_queries",
        *reads,
        *moments,
        *verify,
    }
    sql.add("mirror_pump.cli.terminal.shell")
    optional = {
        "mirror_pump.ops.clients.token_issuer": "oauth",
        "mirror_pump.ops.follow.glue_catalog": "glue",
        "mirror_pump.ops.follow.hive_catalog": "hive",
        "mirror_pump.rest_catalog.table_credentials": "oauth",
    }
    providers = importlib.metadata.packages_distributions()
    undeclared = set()
    for module, imported in _graph(_ROOT).items():
        declared = needed | demo if _layer(module) == "testing" or module in sql else needed
        extra = "lake" if _layer(module) == "storage_kinds" else optional.get(module, "")
        declared = declared | {_distribution(text) for text in extras.get(extra, ())}
        for package in {name.partition(".")[0] for name in imported} - {"decoders", "mirror_pump", "sql", ""}:
            if package not in sys.stdlib_module_names:
                names = {_distribution(name) for name in providers.get(package, [package])}
                if not names & declared:
                    undeclared.add((module, package))
    assert undeclared == set()


def _distribution(requirement: str) -> str:
    """The normalised name (PEP 503) that a requirement begins with."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _rooms_section() -> str:
    """The section of the document: layers from the top to the bottom, with what their packages say of themselves."""
    rows = [f"| `{_place(layer)}` | {_purpose(layer)} | {_rooms_of(layer)} |" for layer in reversed(_BELOW)]
    return "\n".join(
        (
            "",
            "Imports point down this list only, and within a line from left to right. `tests/unit/test_layers.py`",
            "says what may import what, enforces it, and writes this list (`python tests/unit/test_layers.py`).",
            "",
            "| layer | what is in it | its rooms |",
            "|---|---|---|",
            *rows,
            "",
        )
    )


def _place(layer: str) -> str:
    if layer == "values":
        return "mirror_pump/*.py"
    return f"{layer}/" if layer in ("decoders", "sql") else f"mirror_pump/{layer}/"


def _purpose(layer: str) -> str:
    """The first paragraph of the package's docstring."""
    if layer == "values":
        return _VALUES
    text = ast.get_docstring(ast.parse((_ROOT / _place(layer) / "__init__.py").read_text(encoding="utf-8")))
    assert text, f"{layer} does not say what it holds"
    return " ".join(text.partition("\n\n")[0].split())


def _rooms_of(layer: str) -> str:
    return ", ".join(reversed(_ROOMS.get(layer, {})))


def test_the_list_of_rooms_in_the_document_is_what_is_enforced() -> None:
    _, heading, section = _DOCUMENT.read_text(encoding="utf-8").partition(_HEADING)
    assert heading
    assert section == _rooms_section(), ".venv/bin/python tests/unit/test_layers.py"


@pytest.mark.parametrize("order", [_BELOW, *_ROOMS.values()])
def test_layers_and_rooms_are_listed_from_the_bottom_to_the_top(order: Mapping[str, Collection[str]]) -> None:
    listed = list(order)
    assert [name for name in listed if not set(order[name]) <= set(listed[: listed.index(name)])] == []


def test_every_room_has_its_place() -> None:
    """A new room fails until its imports are declared, and every room says what is in it."""
    for layer, rooms in _ROOMS.items():
        packages = {path.parent.name: path for path in (_ROOT / "mirror_pump" / layer).glob("*/__init__.py")}
        assert packages.keys() == rooms.keys(), layer
        for name, path in packages.items():
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), (
                f"{layer}/{name} does not say what it holds"
            )


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert _cycle(_graph(_ROOT)) == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("mirror_pump.lake.x", "from mirror_pump.source.connect import connect"),
        ("mirror_pump.lake.x", "from mirror_pump import tables"),
        ("mirror_pump.pipeline.x", "from mirror_pump.tables.table.table import Table"),
        ("mirror_pump.source.x", "def f():\n    import mirror_pump.lake.format.schema"),
        ("mirror_pump.engine.x", "from mirror_pump import pipeline"),
        ("mirror_pump.engine.x", "from ..pipeline import apply"),
        ("mirror_pump.model", "from mirror_pump.lake.format.schema import LakeSchema"),
        ("mirror_pump.pipeline.x", "from mirror_pump.testing.postgres import EmbeddedPostgres"),
        ("mirror_pump.ops.x", "from mirror_pump.monitoring.monitor import Monitor"),
        ("mirror_pump.ops.x", "if TYPE_CHECKING:\n    from mirror_pump.cli.terminal.output import say"),
        ("mirror_pump.pipeline.flow.x", "from mirror_pump.pipeline.session.pump import Pump"),
        ("mirror_pump.pipeline.retention.x", "from mirror_pump.pipeline.publish import staging"),
        ("mirror_pump.lake.storage", "from mirror_pump.lake.document.table_metadata import MAIN"),
        ("decoders.x", "from mirror_pump.model import Lsn"),
        ("decoders.x", "import psycopg"),
        ("sql", "import mirror_pump.errors"),
        ("mirror_pump.runtime.x", "from mirror_pump.settings.config import Settings"),
        ("mirror_pump.model", "from mirror_pump.runtime.telemetry import get_logger"),
    ],
)
def test_a_wrong_import_is_found(module: str, statement: str) -> None:
    imported = set(_imports(ast.parse(statement), module, is_package=False))
    assert _violations({module: imported}) != []


def test_a_ring_is_found() -> None:
    assert _cycle({"a": {"b"}, "b": {"c", "os"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


if __name__ == "__main__":
    above, found_heading, _ = _DOCUMENT.read_text(encoding="utf-8").partition(_HEADING)
    _DOCUMENT.write_text(above + found_heading + _rooms_section(), encoding="utf-8")
