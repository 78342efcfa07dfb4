"""What an option of a table is, as data. Each option is one entry of `OPTIONS` (table_options.py).

    command line, or entry of a file -> values as typed -> refuse_conflicts -> TableOptions -> register, preview
    registered table -> RegisteredOptions -> of_table -> values as typed -> export, "is registered with ..."
    TableOptions beside RegisteredOptions -> differing options -> what `apply` alters, or why `register` refuses

- The command line (mirror_pump/cli/arguments/register_options.py) and the files of `apply` make their parameters and
  keys of the entries. Both give a map of values as typed, by key.
- `wish_of` (mirror_pump/ops/register/table_wish.py) refuses pairs that do not go together, parses the values, and puts
  each into its part of a TableOptions: ColumnChoices, RetentionOptions, FeedOptions or SnapshotPlan. What registering
  does reads these parts.
- `of_table` says which value a registered table has, and `text` how it is typed. Export, the text of a registration and
  the comparison with a wish are these two, for all entries.
- docs/table-options.md has the entries and their refused pairs (python -m tests.support.table_options_page).

So a new option is an entry, the field that its value goes to, and what reads the field. No other module lists options.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from mirror_pump.model import MirroredTable

if TYPE_CHECKING:
    from mirror_pump.source.catalog.change_feeds import ChangeFeed
    from mirror_pump.source.retention.partitions import RetentionChoices

SEVERAL_TABLES = "tables"
"""What an option of a single table does not go with: a pattern, or several names."""
FOLLOW_NEW = "follow_new"
"""The option of `register` by which tables join later."""


class Panel(StrEnum):
    """Groups of options in the help of `register`."""

    FIRST = "Options"
    """Those that most people need."""
    COLUMNS = "Columns and rows"
    LAKE = "Lake table"
    SNAPSHOTS = "Change feeds, and tables that are not followed"
    PARTITIONS = "Partitions that leave the heap"
    ALTER = "Tables that are mirrored already"


class Alteration(Enum):
    """How an option of a registered table is changed. The value: in words, for the documentation."""

    ANEW = "a new registration"
    LAYOUT = "register --alter"
    CHANGES = "register --alter, for the feed"
    POLICY = "policy set"
    UPGRADE = "policy set, to a later one"


class ComparedWhen(Enum):
    """When a registered table has to have what is wished."""

    ALWAYS = "always"
    WITH_PART = "with its part"
    """If an option of the same part is given: together they say how the table is to be."""
    IF_GIVEN = "if given"
    NEVER = "never"
    """It may have been changed since the registration."""


@dataclass(frozen=True)
class Conflict:
    """Options that another one does not go with."""

    others: tuple[str, ...]
    """Keys of options, SEVERAL_TABLES or FOLLOW_NEW: any of them."""
    reason: str
    remedy: str = "leave out one of them"
    only_typed: bool = False
    """Whether the other one may come from the publication."""


@dataclass(frozen=True)
class RegisteredOptions:
    """A registered table, with what of its options is not part of the table's value."""

    table: MirroredTable
    retention: RetentionChoices | None = None
    feed: ChangeFeed | None = None
    profile: str | None = None
    """Name of the storage profile; None: not read."""
    also_listed: tuple[str, ...] = ()
    """Columns that its column list is to have, too."""


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True, eq=False)
class TableOption:
    """An option of a table."""

    key: str
    """In a file of `apply`. On the command line, it has dashes."""
    meaning: str
    """The help text."""
    panel: Panel
    kind: Any = str
    """The type of the value as typed."""
    default: Any = None
    """As typed."""
    metavar: str | None = None
    bare: str | None = None
    """The value of an option that is given without one. None: it always has one."""
    lowest: int | None = None
    highest: int | None = None
    part: str = ""
    """The field of TableOptions that has the value; empty: TableOptions itself."""
    field: str | None = None
    """The field of that part; None: that of the key. Empty: the part itself, which is there if the option is given."""
    parse: Callable[[Any], Any] = _as_it_is
    """The value of what was typed. Raises UsageError."""
    text: Callable[[Any], Any] = _as_it_is
    """A value as it is typed."""
    stored: Callable[[RegisteredOptions], Any] | None = None
    """The value that a registered table has; None: what the holder has under the key."""
    wished: Callable[[Any], Any] | None = None
    """The value in a TableOptions; None: that of the field."""
    compared: ComparedWhen = ComparedWhen.WITH_PART
    same: Callable[[Any, RegisteredOptions], bool] | None = None
    """Whether a registered table is as it is wished; None: if both values are the same."""
    alter: Alteration = Alteration.ANEW
    lost_by_anew: str = "it is copied again"
    """What a new registration leads to."""
    removal: str = ""
    """The help text of its `--no-` option, which `--alter` has; empty: there is none."""
    requires: tuple[str, ...] = ()
    """Keys of options of which one has to be given."""
    required_since: str = ""
    """Why."""
    conflicts: tuple[Conflict, ...] = ()
    shown: str = ""
    """How it is named where it is given; empty: its flag."""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.key.replace("_", "-")

    @property
    def name(self) -> str:
        """The option as texts name it."""
        return self.shown or self.flag

    @property
    def wish_field(self) -> str:
        """The field of the part that has the value."""
        return self.key if self.field is None else self.field

    @property
    def typed_kind(self) -> Any:
        """The type of what may be typed, or not."""
        return self.kind if self.default is not None else self.kind | None

    def is_given(self, typed: Any) -> bool:
        """Whether a value as typed is more than the default. Spaces alone are no condition and no list of names."""
        is_blank = self.default == "" and isinstance(typed, str) and not typed.strip()
        return typed is not None and typed != self.default and typed != [] and not is_blank

    def of_wish(self, wish: Any) -> Any:
        """The value in a TableOptions; something false if the option is not given."""
        if self.wished is not None:
            return self.wished(wish)
        part = getattr(wish, self.part) if self.part else wish
        return None if part is None else getattr(part, self.wish_field)

    def of_table(self, registered: RegisteredOptions) -> Any:
        """The value that a registered table has; something false if it is as without the option."""
        return self.stored(registered) if self.stored else getattr(self.holder(registered), self.key, None)

    def holder(self, registered: RegisteredOptions) -> object:
        """What has the values of registered tables."""
        return registered

    def differs(self, wish: Any, registered: RegisteredOptions) -> bool:
        """Whether a registered table has another value than the wish."""
        requested = self.of_wish(wish)
        same = requested == self.of_table(registered) if self.same is None else self.same(requested, registered)
        return not same

    def arguments(self, typed: Any) -> str:
        """The option with a value, for a shell."""
        if typed is True:
            return self.flag
        if isinstance(typed, list):
            return " ".join(f"{self.flag} {shlex.quote(each)}" for each in typed)
        return f"{self.flag}{'=' if self.bare else ' '}{shlex.quote(str(typed))}"
