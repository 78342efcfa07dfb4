"""Descriptions of relations: the facts that decide whether and how a relation is mirrored. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror_pump.model import Column, ExcludedColumn, TableId, TableName


@dataclass(frozen=True)
class Identity:
    """What the server writes as a row's old key (ALTER TABLE ... REPLICA IDENTITY), reduced to the mirror's key."""

    setting: str
    """pg_class.relreplident: `d` default, `f` full, `i` index, `n` nothing."""
    key: tuple[str, ...]
    """Names of the key columns in attribute order: the primary key's under `d` and `f`, the index's under `i`."""
    immediate: bool
    """False for a DEFERRABLE primary key, whose values need not be unique within a transaction."""


@dataclass(frozen=True)
class LeafPartition:
    """A relation that holds rows: the table itself, or a leaf partition."""

    relation_id: int
    name: TableName
    kind: str
    """pg_class.relkind."""
    persistence: str
    """pg_class.relpersistence: `p` permanent, `u` unlogged, `t` temporary."""
    filenode: int
    """pg_relation_filenode(): changes whenever Postgres rewrites the heap. 0 without storage."""
    blocks: int
    """Size of the main fork in pages of `block_bytes`."""
    estimated_rows: int
    """pg_class.reltuples; 0 if never analysed."""
    identity: Identity
    row_security: bool
    """Whether policies would hide rows from us."""
    readable: bool
    """Whether we may SELECT from it."""


@dataclass(frozen=True)
class RelationDescription:
    """A relation as it was when `describe` read the catalogs."""

    table_id: TableId
    name: TableName
    kind: str
    """pg_class.relkind: `r` table, `p` partitioned table. Other kinds are refused."""
    persistence: str
    columns: tuple[Column, ...]
    """The columns that pgoutput publishes and the user did not exclude, in attribute order, with field IDs 1..n."""
    generated: tuple[str, ...]
    """Names of the generated columns that are not mirrored: virtual ones, which are not stored, and stored ones unless
    the publication has publish_generated_columns = stored (18 and later)."""
    identity: Identity
    leaves: tuple[LeafPartition, ...]
    """The table itself, or the leaf partitions of a partitioned table (none while it has no partitions)."""
    partition_of: TableName | None
    """The topmost partitioned table, if the relation is a partition."""
    inherits: bool
    """Whether the relation has parents or children by INHERITS."""
    owned: bool
    """Whether the publisher is a member of the owning role, which is required to add the table to a publication."""
    row_security: bool
    block_bytes: int
    full_needs_generated: bool = False
    """Whether the server refuses UPDATE and DELETE on a published table with REPLICA IDENTITY FULL and unpublished
    generated columns, as it does from 18 on (pub_contains_invalid_column in publicationcmds.c)."""
    excluded: tuple[ExcludedColumn, ...] = ()
    """Columns that are published, but excluded by the user."""
    of_catalog: bool = field(default=False, compare=False)
    """Whether it is part of a mirror's catalog."""
    listed_by: tuple[str, ...] = field(default=(), compare=False)
    """Publications, also of other mirrors and of other programs, that have some of its columns alone."""
    role: str = field(default="...", compare=False)
    """Our role, for remedies."""
    publisher: str = field(default="...", compare=False)
    """The owner of schema modak and of the publication, for remedies. Before `init`, our role."""
    owner: str = field(default="...", compare=False)
    """The owning role, for remedies. A description from a change note names none of these."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.identity.key

    @property
    def whole_rows(self) -> bool:
        """Whether rows can only be found by all their values, and the stream has these."""
        return not self.identity.key and self.identity.setting == "f"

    @property
    def against_full(self) -> str:
        """Why REPLICA IDENTITY FULL is no remedy; empty if nothing is known against it."""
        if not self.listed_by:
            return ""
        return (
            f"publication {self.listed_by[0]} has a column list for it, with which PostgreSQL would refuse UPDATE and"
            " DELETE under REPLICA IDENTITY FULL"
        )

    @property
    def estimated_rows(self) -> int:
        """The planner's estimate over all leaves; 0 if never analysed."""
        return sum(leaf.estimated_rows for leaf in self.leaves)

    @property
    def bytes(self) -> int:
        """Size of the main forks of the heap, without TOAST and indexes."""
        return sum(leaf.blocks for leaf in self.leaves) * self.block_bytes
