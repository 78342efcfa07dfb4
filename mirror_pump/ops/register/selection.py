"""Which tables `register` is about: those that are named, and those that match a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pump.errors import TableError
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import require_stream
from mirror_pump.source.catalog.followed import end_following, follow_patterns, followed_patterns
from mirror_pump.source.catalog.profiles import find_profile
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.matched_tables import matched_tables
from mirror_pump.source.relations.table_patterns import is_pattern, parse_pattern


@dataclass(frozen=True)
class SelectedTables:
    """What names and patterns mean."""

    names: tuple[str, ...]
    """Those that were named, in their order; then those that match, small ones first."""
    by_pattern: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Why tables that match are left out, by name: nothing can mirror them."""
    unmatched: tuple[str, ...] = ()
    """The patterns that mean no table."""


def select_tables(settings: Settings, names: Sequence[str], excluded: Sequence[str]) -> SelectedTables:
    """Looks for the tables that match. Raises UsageError for what is no pattern."""
    patterns = [parse_pattern(name) for name in names if is_pattern(name)]
    left_out = [parse_pattern(text) for text in excluded]
    if not patterns:
        return SelectedTables(tuple(names))
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        matched = matched_tables(connection, patterns, left_out)
    named = [name for name in names if not is_pattern(name)]
    chosen = tuple(dict.fromkeys((*named, *matched.names)))
    return SelectedTables(chosen, by_pattern=True, unfit=matched.unfit, unmatched=matched.unmatched)


def follow(settings: Settings, patterns: Sequence[str], excluded: Sequence[str], profile: str | None) -> None:
    """Have tables that match join when they are created, while a pump runs. Raises SourceError if they cannot."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        require_followable(connection, settings, profile)
        follow_patterns(connection, settings.slot, patterns, excluded, profile)


def require_followable(connection: PgConnection, settings: Settings, profile: str | None) -> None:
    """Raise SourceError if no table can join by itself, or not with this storage profile."""
    require_stream(connection, settings.slot, "tables cannot join by themselves")
    if profile is not None:
        find_profile(connection, profile)


def unfollow(settings: Settings, pattern: str) -> None:
    """Have no table join for this pattern any more. Tables that have joined stay. Raises TableError if the pattern is
    not followed."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-register") as connection:
        if end_following(connection, settings.slot, pattern):
            return
        followed = ", ".join(each.pattern for each in followed_patterns(connection, settings.slot))
    raise TableError(
        f"no tables join by pattern {pattern}",
        f"name one that is followed: {followed}" if followed else "nothing: no pattern is followed",
    )
