"""A table's maintenance policy: its keys, their defaults, and the checks of their values. No I/O.

Overrides are stored in modak.tables.maintenance_policy, by key. Keys that the reference implementation of the seam
protocol also has keep their names and meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError

from mirror_pump.errors import UsageError

FORMAT_VERSION_KEY = "format_version"
"""A key that `mirror-pump policy` has besides those of maintenance: of the lake table, and only ever raised."""

_MIB = 1 << 20

Hours = Annotated[float, Field(ge=0, le=24 * 3650)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Policy(BaseModel):
    """What maintenance may do to one table, and how much backlog makes it start."""

    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True)

    maintenance_enabled: bool = Field(
        default=True, description="Maintain the table automatically (`maintain TABLE` works in any case)"
    )

    rewrite_enabled: bool = Field(default=True, description="Merge small data files")
    rewrite_strategy: Literal["binpack", "sort"] = Field(
        default="binpack",
        description="`binpack` keeps the order of rows, `sort` sorts the rewritten rows by key",
    )
    rewrite_target_bytes: Annotated[ByteSize, Field(ge=_MIB, le=1 << 40)] = Field(
        default=ByteSize(128 * _MIB), description="Target size of data files"
    )
    rewrite_min_input_files: Annotated[int, Field(ge=2, le=100_000)] = Field(
        default=50, description="Number of small data files of one size class that makes a rewrite due"
    )
    rewrite_max_group_bytes: Annotated[ByteSize, Field(ge=_MIB)] = Field(
        default=ByteSize(2048 * _MIB),
        description="Most data rewritten in one commit; limits disk space, time and the cost of a conflict",
    )

    delete_compaction_enabled: bool = Field(default=True, description="Rewrite data files with deleted rows")
    delete_compaction_min_rows: Count = Field(
        default=10_000, description="Least number of rows in delete files that makes delete compaction due"
    )
    delete_compaction_ratio: Annotated[float, Field(gt=0, le=10)] = Field(
        default=0.2,
        description="Least ratio of rows in delete files to rows in data files that makes delete compaction due",
    )
    position_delete_rewrite_enabled: bool = Field(default=True, description="Merge small position-delete files")
    position_delete_rewrite_min_files: Annotated[int, Field(ge=2)] = Field(
        default=200, description="Number of position-delete files that makes merging them due"
    )

    manifest_rewrite_enabled: bool = Field(default=True, description="Merge manifests")
    manifest_rewrite_min_manifests: Annotated[int, Field(ge=2)] = Field(
        default=100, description="Number of manifests that makes merging them due"
    )

    snapshot_expiry_enabled: bool = Field(
        default=True, description="Expire snapshots, and delete the files that only they need"
    )
    snapshot_retention_hours: Hours = Field(
        default=24.0, description="Hours that a snapshot stays readable after the next one replaced it"
    )
    snapshot_min_retained: Count = Field(
        default=10, description="Number of newest snapshots that stay regardless of their age"
    )
    snapshot_expiry_min_snapshots: Count = Field(
        default=10, description="Number of expired snapshots that makes an expiry due"
    )

    history_newest: Count = Field(
        default=100, description="Number of newest snapshots that the pump's commits keep in the history"
    )
    history_minutes_hours: Hours = Field(
        default=1.0, description="Hours for which the pump's commits keep one older snapshot per minute"
    )
    history_hours_hours: Hours = Field(
        default=168.0, description="Hours for which the pump's commits keep one older snapshot per hour"
    )

    orphan_sweep_enabled: bool = Field(
        default=True, description="Delete files under the table's location that nothing refers to"
    )
    orphan_grace_hours: Annotated[float, Field(ge=1, le=24 * 3650)] = Field(
        default=24.0,
        description="Least age in hours of an orphan file to delete; must exceed the longest write of any other engine",
    )
    metadata_grace_hours: Annotated[float, Field(ge=0.5, le=24 * 3650)] = Field(
        default=1.0,
        description="Least age in hours of a *.metadata.json file to delete that has left the metadata log",
    )
    orphan_sweep_min_commits: Count = Field(
        default=2000, description="Number of commits since the last sweep that makes a sweep due"
    )

    defaults_in_metadata: bool = Field(
        default=False,
        description="In format version 3, leave the constant default of a new column to readers, instead of rewriting"
        " the table's files: some engines read NULL then (docs/readers.md)",
    )

    load_label_days: Annotated[float, Field(ge=1 / 24, le=3650)] = Field(
        default=30.0,
        description="Days that a load's label is kept; within them the same load again returns the result",
    )

    @property
    def retention_ms(self) -> int:
        """`snapshot_retention_hours` in milliseconds."""
        return round(self.snapshot_retention_hours * 3_600_000)

    def to_json(self) -> dict[str, Any]:
        """All keys with their effective values, as in JSON."""
        return {key: as_json(value) for key, value in self}


KEYS: tuple[str, ...] = tuple(Policy.model_fields)


def policy_of(overrides: Mapping[str, Any]) -> Policy:
    """The policy with these overrides applied. Raises UsageError if a stored value is invalid."""
    try:
        return Policy(**{key: value for key, value in overrides.items() if key in Policy.model_fields})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = str(problem["loc"][0])
        raise UsageError(
            f"the stored maintenance policy is invalid: {key}: {problem['msg']}",
            f"mirror-pump policy set TABLE {key} VALUE",
        ) from None


def require_key(key: str) -> str:
    """`key`, if the policy has it. Raises UsageError, which lists all keys, otherwise."""
    if key not in Policy.model_fields:
        raise UsageError(f"{key} is not a key of the maintenance policy", f"known keys: {', '.join(KEYS)}")
    return key


def parse_value(key: str, text: str) -> Any:
    """The JSON value of a key from a user's text (`128MiB`, `false`). Raises UsageError for an invalid text."""
    info = Policy.model_fields[require_key(key)]
    try:
        return as_json(getattr(Policy.model_validate({key: text.strip()}), key))
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise UsageError(
            f"{key}: {reason}", f"{key}: {info.description}; the default is {show(info.default)}"
        ) from None


def as_json(value: Any) -> Any:
    """A value of the policy as in JSON: sizes in bytes."""
    return int(value) if isinstance(value, ByteSize) else value


def show(value: Any) -> str:
    """A value for display, in a form that `parse_value` accepts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, ByteSize):
        return value.human_readable()
    return f"{value:g}" if isinstance(value, float) else str(value)
