"""What a pump has done since it started, over all sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.retention.next_step import Turns
from mirror_pump.pipeline.retention.partition_premake import KeySpeeds
from mirror_pump.pipeline.stream.batch_pace import FileCeiling


@dataclass
class RunState:
    """Owned by the session loop."""

    frontier: Lsn
    published: Lsn | None = None
    """The newest frontier that this process has published, or found in the catalog. A catalog with an older one went
    back."""
    commits: int = 0
    changes: int = 0
    isolated_transaction: Lsn | None = None
    """The transaction (LSN of its commit) at which the stream ended because a row cannot be sent."""
    epoch: int | None = None
    """The epoch of the last leadership."""
    timeline: int | None = None
    """The server's timeline in the last session."""
    missing: tuple[tuple[TableId, str], ...] = ()
    """Files that tables were found to lack when a session began. The loop looks again, and fails these tables."""
    turns: Turns = field(default_factory=Turns)
    """The retention thread's: which table it looks at next."""
    key_speeds: KeySpeeds = field(default_factory=KeySpeeds)
    """Of the thread that makes partitions ahead."""
    neglect_reported_at: dict[TableId, float] = field(default_factory=dict)
    """Of the neglect watch: when it last reported each table."""
    file_ceiling: FileCeiling = field(default_factory=lambda: FileCeiling(0, 0.0))
    """The receiver's: what earlier sessions have written counts."""
