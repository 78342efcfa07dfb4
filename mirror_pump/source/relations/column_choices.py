"""The user's choices at register: other lake types for columns, masks, and columns to exclude.

A lake type may be chosen if it, or a raw text column for it, can hold every value of the Postgres type. Once a table
is registered, choices belong to attribute numbers, so that they survive a rename. A masked column is a string in the
lake, whatever its type, and stays masked whatever becomes of its type.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from decoders.columns import ColumnType, Kind
from decoders.masks import Mask, MaskKeyUnusable
from decoders.pgtypes import DOCUMENTS
from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import Column, ExcludedColumn, MirroredTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.partition_choices import (
    PartitionChoice,
    SortChoice,
    layout_text,
    parse_partition_by,
    parse_sort_by,
    partition_choices,
    sort_choices,
)
from mirror_pump.source.relations.relations import document_types, numeric_types
from sql import queries

_SQL = queries("relations")

_TEXT = ColumnType(Kind.STRING)
_TEXTS = ColumnType(Kind.LIST, element=_TEXT)
_FIRST_LISTS = 150000
"""The first server version that has column lists."""
_NUMERIC = frozenset({1700, 1231})
"""numeric and numeric[]."""


@dataclass(frozen=True)
class ColumnChoices:
    """The choices by column name, as the user wrote it."""

    types: Mapping[str, ColumnType] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """The only columns that the server sends. Empty: all that are not excluded, and those besides."""
    where: str = ""
    """The condition on the rows that are mirrored. Empty: all rows."""
    append_only: bool = False
    """The table has no key, and its rows are only inserted."""
    partition_by: tuple[PartitionChoice, ...] = ()
    """How the lake table is partitioned."""
    sort_by: tuple[SortChoice, ...] = ()
    """How its rows are sorted."""

    def __bool__(self) -> bool:
        return self != NO_CHOICES

    def includes(self, name: str) -> bool:
        """Whether a column is mirrored."""
        return name not in self.excluded and (not self.listed or name in self.listed)

    @property
    def leaves_out_new(self) -> bool:
        """Whether columns that are added later are left out."""
        return bool(self.masked or self.listed)

    @property
    def has_variants(self) -> bool:
        """Whether documents are to be variants."""
        return any(column_type.kind is Kind.VARIANT for column_type in self.types.values())

    @property
    def masked(self) -> frozenset[str]:
        """Names of the columns with a mask."""
        return frozenset(name for name, column_type in self.types.items() if column_type.mask is not None)


NO_CHOICES = ColumnChoices()


def parse_choices(
    columns: Sequence[str],
    excluded: Sequence[str],
    masks: Sequence[str] = (),
    where: str = "",
    listed: str = "",
    *,
    append_only: bool = False,
    partition_by: str | None = None,
    sort_by: str | None = None,
) -> ColumnChoices:
    """Choices from `name=type` options, names of excluded columns, `name=mask` options, a row filter, and names of the
    only columns, with commas between them.

    Raises UsageError for a malformed option, for a column that is named twice, and for a mask whose key cannot be read.
    """
    types: dict[str, ColumnType] = {}
    for option in columns:
        # A name may contain an equals sign; a type does not.
        name, equals, text = option.rpartition("=")
        if not equals or not name:
            raise UsageError(f"--column {option}: no lake type", "write it as --column 'amount=decimal(38,9)'")
        if name in types:
            raise UsageError(f"--column names {name} twice")
        types[name] = _parse_type(text)
    for option in masks:
        name, mask = _parse_mask(option)
        if name in types:
            raise UsageError(f"--mask and --column name {name} twice", "a masked column is a string in the lake")
        types[name] = ColumnType(Kind.STRING, mask=mask)
    both = types.keys() & set(excluded)
    if both:
        raise UsageError(f"column {min(both)} cannot both be excluded and have a type or a mask")
    only = {name.strip() for name in next(csv.reader([listed], skipinitialspace=True), [])} - {""}
    if only and excluded:
        raise UsageError("--columns-only and --exclude-column exclude each other", "name the columns that may leave")
    if only and types.keys() - only:
        raise UsageError(f"column {min(types.keys() - only)} is not in --columns-only")
    partitions = () if partition_by is None else parse_partition_by(partition_by)
    return ColumnChoices(
        types,
        frozenset(excluded),
        frozenset(only),
        where.strip(),
        append_only,
        partitions,
        () if sort_by is None else parse_sort_by(sort_by),
    )


def _parse_mask(option: str) -> tuple[str, Mask]:
    """A column's name and its mask. Errors do not repeat the mask: it may be a key, by mistake."""
    name, equals, text = option.partition("=")
    if not equals or not name:
        raise UsageError(f"--mask {name}: no mask", "write it as --mask email=sha256")
    try:
        return name, Mask.parse(text).with_key_check()
    except MaskKeyUnusable as error:
        raise UsageError(f"--mask {name}: {error}", "docs/masks.md says who reads the key") from None
    except ValueError:
        raise UsageError(
            f"--mask {name}: not a mask",
            "choose sha256, hmac(env:NAME), hmac(file:/absolute/path), null, prefix(N) or constant(TEXT)",
        ) from None


def _parse_type(text: str) -> ColumnType:
    try:
        column_type = ColumnType.parse(text.replace(" ", "").lower())
        sound = _sound(column_type)
    except (ValueError, TypeError):
        sound = False
    if not sound:
        raise UsageError(
            f"{text!r} is not a lake type that can be chosen",
            "choose string, long, decimal(P,S) with P up to 38, or a list of these, such as list<decimal(38,9)>; for"
            " json and jsonb variant",
        )
    return column_type


def _sound(column_type: ColumnType) -> bool:
    if column_type.element is not None:
        return column_type.element.kind not in (Kind.LIST, Kind.VARIANT) and _sound(column_type.element)
    return column_type.kind is not Kind.DECIMAL or (
        0 <= column_type.scale <= column_type.precision and 1 <= column_type.precision <= 38
    )


def chosen(connection: PgConnection, relation: RelationDescription, choices: ColumnChoices) -> RelationDescription:
    """The description with the user's choices applied. Raises TableError for a choice that the table does not allow."""
    if not choices:
        return relation
    if choices.append_only and relation.key:
        raise TableError(f"{relation.name} has a key ({', '.join(relation.key)})", "register it without --append-only")
    if choices.append_only and choices.where:
        raise TableError(
            f"{relation.name} has no key, and a row filter needs one", "register it without --where, or give it a key"
        )
    names = {column.name for column in relation.columns}
    for name in sorted(choices.types.keys() | choices.excluded | choices.listed):
        if name not in names:
            problem = (
                "is generated, and excluded anyway" if name in relation.generated else "is not a column of the table"
            )
            raise TableError(
                f"{relation.name}: {name} of {_option_of(choices, name)} {problem}",
                f"its columns are {', '.join(sorted(names))}",
            )
    refuse_list(connection, relation, choices)
    for name in relation.key:
        if name in choices.excluded:
            raise TableError(
                f"{relation.name}: {name} is part of its key, and cannot be excluded",
                "the mirror finds rows by their key",
            )
        if name in choices.masked:
            raise TableError(
                f"{relation.name}: {name} is part of its key, and cannot be masked",
                "the mirror finds rows by their key, also in PostgreSQL. Give the table a key without personal data",
            )
    types = {column.type_oid for column in relation.columns}
    numeric = numeric_types(connection, types)
    documents = document_types(connection, types) if choices.has_variants else frozenset()
    columns = []
    for column in relation.columns:
        chosen_type = choices.types.get(column.name)
        if chosen_type is not None and not _permitted(
            column.type, chosen_type, numeric=column.type_oid in numeric, document=column.type_oid in documents
        ):
            raise TableError(
                f"{relation.name}: column {column.name} is {column.type_sql}; not every value of it can be"
                f" mirrored as {chosen_type}",
                f"keep {column.type}, or choose string",
            )
        if choices.includes(column.name):
            columns.append(column if chosen_type is None else replace(column, type=chosen_type, chosen=True))
    excluded = tuple(
        ExcludedColumn(column.attnum, column.name) for column in relation.columns if not choices.includes(column.name)
    )
    return replace(relation, columns=tuple(columns), excluded=excluded)


def _option_of(choices: ColumnChoices, name: str) -> str:
    """The option that names a column."""
    if name in choices.types:
        return "--mask" if name in choices.masked else "--column"
    return "--exclude-column" if name in choices.excluded else "--columns-only"


def refuse_list(connection: PgConnection, relation: RelationDescription, choices: ColumnChoices) -> None:
    """Raises TableError for a column list that the server would refuse, at once or at each UPDATE."""
    if not choices.listed:
        return
    name = relation.name
    if connection.info.server_version < _FIRST_LISTS:
        raise TableError(
            f"{name}: publications have column lists from PostgreSQL 15 on",
            "upgrade the server, or use --exclude-column: the pump discards what the server sends",
        )
    if relation.identity.setting == "f":
        raise TableError(
            f"{name} has REPLICA IDENTITY FULL, under which PostgreSQL sends whole rows: it would refuse UPDATE and"
            " DELETE with a column list",
            "use --exclude-column: the pump discards what the server sends"
            if relation.whole_rows
            else f"ALTER TABLE {name.quoted} REPLICA IDENTITY DEFAULT, or use --exclude-column",
        )
    missing = [column for column in relation.key if column not in choices.listed]
    if missing:
        raise TableError(
            f"{name}: {missing[0]} is part of its key, and has to be listed", "the mirror finds rows by their key"
        )


def refuse_masks(relation: RelationDescription, choices: ColumnChoices, *, sheds: bool) -> None:
    """Raises TableError if masks are chosen for a table that sheds rows: their values would be gone for good, and a
    partition could not be brought back as it was."""
    if sheds and choices.leaves_out_new:
        raise TableError(
            f"{relation.name}: a table whose rows leave the heap cannot have masks or a column list: the lake alone has"
            " the rows of a dropped partition, so what it does not get would be gone for good",
            "Leave out --mask and --columns-only, or leave out --heap-retention and --mode tiered",
        )


def variant_columns(columns: Sequence[Column]) -> tuple[str, ...]:
    """Names of the columns that are variants in the lake."""
    return tuple(column.name for column in columns if column.type.kind is Kind.VARIANT)


def still_chosen(relation: RelationDescription, table: MirroredTable) -> RelationDescription:
    """A later description of a registered table, with the choices of its registration applied.

    If a column's new type does not allow the chosen lake type, the column gets its default lake type.
    """
    left_out = {column.attnum for column in table.excluded}
    if table.leaves_out_new:
        left_out |= {column.attnum for column in relation.columns} - {column.attnum for column in table.columns}
    before = {column.attnum: column for column in table.columns if column.chosen}
    columns = tuple(
        _still_chosen(column, before.get(column.attnum)) for column in relation.columns if column.attnum not in left_out
    )
    excluded = tuple(
        ExcludedColumn(column.attnum, column.name) for column in relation.columns if column.attnum in left_out
    )
    return replace(relation, columns=columns, excluded=excluded)


def _still_chosen(column: Column, before: Column | None) -> Column:
    if before is None:
        return column
    same = (before.type_oid, before.type_modifier) == (column.type_oid, column.type_modifier)
    if same or _permitted(
        column.type, before.type, numeric=column.type_oid in _NUMERIC, document=column.type_oid in DOCUMENTS
    ):
        return replace(column, type=before.type, chosen=True)
    return column


def decimal_option(column: Column) -> str:
    """The option of `register` that makes decimals of a column of numbers that is text in the lake."""
    chosen_type = "decimal(38,9)" if column.type == _TEXT else "list<decimal(38,9)>"
    return f"--column {shlex.quote(f'{column.name}={chosen_type}')}"


def is_number_as_text(column: Column, numeric: Collection[int] = _NUMERIC) -> bool:
    """Whether a column is text in the lake, though its type is among `numeric`, and the user did not choose that."""
    return column.type_oid in numeric and column.type in (_TEXT, _TEXTS) and not column.chosen


def numbers_as_text(connection: PgConnection, table: MirroredTable | RelationDescription) -> tuple[Column, ...]:
    """The columns of numbers that are text in the lake, though the user did not choose that: `numeric` without a
    precision."""
    if not any(column.type in (_TEXT, _TEXTS) and not column.chosen for column in table.columns):
        return ()
    numeric = numeric_types(connection, {column.type_oid for column in table.columns})
    return tuple(column for column in table.columns if is_number_as_text(column, numeric))


def same_choices(table: MirroredTable, choices: ColumnChoices) -> bool:
    """Whether a registered table has exactly these choices."""
    if table.append_only != choices.append_only:
        return False
    layout = partition_choices(table), sort_choices(table)
    if table.tier is None and layout != (choices.partition_by, choices.sort_by):
        return False
    types = {column.name: column.type for column in table.columns if column.chosen}
    if types != dict(choices.types) or table.column_list != bool(choices.listed):
        return False
    if choices.listed:
        return {column.name for column in table.columns} == choices.listed
    excluded = {column.name for column in table.excluded}
    # Others may have been added since.
    return excluded == choices.excluded or (table.leaves_out_new and excluded > choices.excluded)


def with_layout_of(choices: ColumnChoices, table: MirroredTable) -> ColumnChoices:
    """The choices with the layout that the table has."""
    return replace(choices, partition_by=partition_choices(table), sort_by=sort_choices(table))


def _permitted(column_type: ColumnType, chosen_type: ColumnType, *, numeric: bool, document: bool = False) -> bool:
    """Whether a column with the default lake type `column_type` may become `chosen_type`. `numeric`: the column's
    Postgres type, or that of its elements, is numeric. `document`: it is json or jsonb."""
    if chosen_type in (column_type, _TEXT) or chosen_type.mask is not None:
        return True
    if Kind.LIST in (column_type.kind, chosen_type.kind):
        both = column_type.kind is chosen_type.kind
        return both and (
            chosen_type == _TEXTS or _permitted(_element(column_type), _element(chosen_type), numeric=numeric)
        )
    if chosen_type.kind is Kind.VARIANT:
        return document
    if chosen_type.kind is Kind.DECIMAL:
        return numeric or column_type.kind in (Kind.INT, Kind.LONG)
    return chosen_type.kind is Kind.LONG and column_type.kind is Kind.INT


def _element(column: ColumnType) -> ColumnType:
    assert column.element is not None
    return column.element


def describe_choices(table: MirroredTable, *, also_listed: Sequence[str] = ()) -> str:
    """The command-line options for the choices of a registered table. `also_listed`: names for its column list, if it
    has one."""
    options = [
        f"--column {shlex.quote(f'{column.name}={column.type}')}"
        if column.type.mask is None
        else f"--mask {shlex.quote(f'{column.name}={column.type.mask}')}"
        for column in table.columns
        if column.chosen
    ]
    if table.column_list:
        options.append(f"--columns-only {shlex.quote(','.join((*table.column_names, *also_listed)))}")
    else:
        options += [f"--exclude-column {shlex.quote(column.name)}" for column in table.excluded]
    if table.row_filter:
        options.append(f"--where {shlex.quote(table.row_filter)}")
    if table.append_only:
        options.append("--append-only")
    if partitions := partition_choices(table):
        options.append(f"--partition-by {shlex.quote(layout_text(partitions))}")
    if columns := sort_choices(table):
        options.append(f"--sort-by {shlex.quote(layout_text(columns))}")
    return " ".join(options)
