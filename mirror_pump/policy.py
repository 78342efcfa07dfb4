"""A table's maintenance policy: its keys, their defaults, and how a wrong value is refused. No I/O.

Overrides are stored in modak.tables.maintenance_policy, by key; keys that the seam protocol's reference implementation
has too keep their names and meanings there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError

from mirror_pump.errors import UsageError

_MIB = 1 << 20

Hours = Annotated[float, Field(ge=0, le=24 * 3650)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Policy(BaseModel):
    """What maintenance may do to one table, and how much debt it lets stand before it does."""

    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True)

    maintenance_enabled: bool = Field(
        default=True, description="Maintain the table without being asked (`maintain TABLE` always does)"
    )

    rewrite_enabled: bool = Field(default=True, description="Merge small data files")
    rewrite_strategy: Literal["binpack", "sort"] = Field(
        default="binpack",
        description="`binpack` keeps the rows' order, `sort` orders them by key within what it rewrites",
    )
    rewrite_target_bytes: Annotated[ByteSize, Field(ge=_MIB, le=1 << 40)] = Field(
        default=ByteSize(128 * _MIB), description="Size of data files to aim at"
    )
    rewrite_min_input_files: Annotated[int, Field(ge=2, le=100_000)] = Field(
        default=50, description="Small data files of one size class that make a rewrite due"
    )
    rewrite_max_group_bytes: Annotated[ByteSize, Field(ge=_MIB)] = Field(
        default=ByteSize(2048 * _MIB),
        description="Data rewritten and committed at a time: bounds disk, time, and what a conflict costs",
    )

    delete_compaction_enabled: bool = Field(default=True, description="Rewrite data files whose rows are deleted")
    delete_compaction_min_rows: Count = Field(
        default=10_000, description="Rows in delete files that must be there before it is due"
    )
    delete_compaction_ratio: Annotated[float, Field(gt=0, le=10)] = Field(
        default=0.2, description="... and their share of the rows in data files"
    )
    position_delete_rewrite_enabled: bool = Field(default=True, description="Merge small position-delete files")
    position_delete_rewrite_min_files: Annotated[int, Field(ge=2)] = Field(
        default=200, description="Position-delete files that make it due"
    )

    manifest_rewrite_enabled: bool = Field(default=True, description="Merge manifests")
    manifest_rewrite_min_manifests: Annotated[int, Field(ge=2)] = Field(
        default=100, description="Manifests that make it due"
    )

    snapshot_expiry_enabled: bool = Field(default=True, description="Expire snapshots, and delete what only they need")
    snapshot_retention_hours: Hours = Field(
        default=24.0, description="Hours that a snapshot stays readable after the next one replaced it"
    )
    snapshot_min_retained: Count = Field(default=10, description="Newest snapshots that stay whatever their age")
    snapshot_expiry_min_snapshots: Count = Field(default=10, description="Expired snapshots that make an expiry due")

    history_newest: Count = Field(
        default=100, description="Newest snapshots that the pump's commits keep in the history"
    )
    history_minutes_hours: Hours = Field(
        default=1.0, description="Hours for which they keep one older snapshot a minute"
    )
    history_hours_hours: Hours = Field(
        default=168.0, description="Hours for which they keep one older snapshot an hour"
    )

    orphan_sweep_enabled: bool = Field(
        default=True, description="Delete files below the table's location that nothing refers to"
    )
    orphan_grace_hours: Annotated[float, Field(ge=1, le=24 * 3650)] = Field(
        default=24.0,
        description="Age before which no such file is touched; longer than any other engine's writing job",
    )
    metadata_grace_hours: Annotated[float, Field(ge=0.5, le=24 * 3650)] = Field(
        default=1.0, description="The same for metadata files (*.metadata.json) that fell out of the metadata log"
    )
    orphan_sweep_min_commits: Count = Field(default=2000, description="Commits since the last sweep that make one due")

    @property
    def retention_ms(self) -> int:
        """`snapshot_retention_hours` in milliseconds."""
        return round(self.snapshot_retention_hours * 3_600_000)

    def to_json(self) -> dict[str, Any]:
        """All keys with the values in force, as JSON has them."""
        return {key: as_json(value) for key, value in self}


KEYS: tuple[str, ...] = tuple(Policy.model_fields)


def policy_of(overrides: Mapping[str, Any]) -> Policy:
    """The policy in force with these overrides. UsageError if a stored value is wrong: nothing is guessed."""
    try:
        return Policy(**{key: value for key, value in overrides.items() if key in Policy.model_fields})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = str(problem["loc"][0])
        raise UsageError(
            f"the stored maintenance policy is wrong: {key}: {problem['msg']}",
            f"mirror-pump policy set TABLE {key} VALUE",
        ) from None


def require_key(key: str) -> str:
    """`key`, if there is such a key; else UsageError that names all."""
    if key not in Policy.model_fields:
        raise UsageError(f"{key} is no key of the maintenance policy", f"known keys: {', '.join(KEYS)}")
    return key


def parse_value(key: str, text: str) -> Any:
    """The value of a key, as JSON has it, from what a user typed (`128MiB`, `false`). UsageError if it is none."""
    info = Policy.model_fields[require_key(key)]
    try:
        return as_json(getattr(Policy.model_validate({key: text.strip()}), key))
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise UsageError(
            f"{key}: {reason}", f"{key}: {info.description}; the default is {show(info.default)}"
        ) from None


def as_json(value: Any) -> Any:
    """A value of the policy as JSON has it: sizes are bytes."""
    return int(value) if isinstance(value, ByteSize) else value


def show(value: Any) -> str:
    """A value as people read it, in the form that `parse_value` takes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, ByteSize):
        return value.human_readable()
    return f"{value:g}" if isinstance(value, float) else str(value)
