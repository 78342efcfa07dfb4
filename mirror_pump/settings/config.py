"""Settings: their definitions, the sources of their values, and the reports of wrong values. Only reads the TOML file.

Precedence: command line, environment (`MIRROR_PUMP_*`), `mirror-pump.toml` (working directory, or --config), defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from mirror_pump.database.startup_options import MIRROR_OPTION
from mirror_pump.errors import UsageError
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.handed_files import read_toml
from mirror_pump.runtime.password_command import RotatingDsn, command_words
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.settings.units import CORES, NAME, ROWS, SECONDS, DefaultText, Seconds, Size, SizeOrNone, Unit
from mirror_pump.storage_kinds import KINDS, S3, StorageKind, kind_of
from sql.mirror_names import NAME as NAME_OF_MIRROR

CONFIG_FILE = "mirror-pump.toml"
"""Read from the working directory unless --config names another file."""

ENV_PREFIX = "MIRROR_PUMP_"

FORMER_SETTINGS = {"batch_age": "files_per_hour"}
"""Settings that are gone, with what has taken their place."""

_MIB = 1024 * 1024

_FROM_MIRROR = DefaultText("mirror_pump, or mirror_pump_NAME with a mirror's name")


def _default_name(settings: Mapping[str, Any]) -> str:
    """Of the slot and the publication of a mirror. `settings`: those that come before, as far as they are valid."""
    mirror = settings.get("mirror")
    return "mirror_pump" if mirror is None else f"mirror_pump_{mirror}"


class Settings(BaseSettings):
    """The settings of one pump. Frozen. `repr()` shows no secrets."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic passes it
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes it
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load_settings` alone reads files. To look for a .env file takes as long as the environment."""
        return init_settings, env_settings

    dsn: Annotated[str, Unit("DSN", "a connection string")] = Field(
        default="",
        repr=False,
        description="Source database: a libpq URI or key=value string",
        examples=["postgresql://user:password@host/database"],
    )
    password_command: Annotated[str | None, Unit("COMMAND", "a program and its arguments")] = Field(
        default=None,
        repr=False,
        description="Program whose first line of output is the database's password, for one that changes: it is run"
        " again when a connection is refused (docs/operations.md)",
        examples=["/usr/local/bin/database-password"],
    )
    mirror: Annotated[str | None, NAME] = Field(
        default=None,
        description="Name of a further mirror of the same database, with a catalog, slot, publication and warehouse of"
        " its own (docs/operations.md#several-mirrors)",
        examples=["reports"],
    )
    warehouse: Annotated[str | None, Unit("URI", "a URI or a directory")] = Field(
        default=None,
        description="Root of the lake's files: a directory, or a file://, s3://, gs:// or abfss:// URI",
        examples=["s3://bucket/prefix"],
    )
    warehouse_mode: Annotated[Literal["private", "group", "public"], Unit("private|group|public", "a word")] = Field(
        default="private",
        description="Who may read what is written to a warehouse in a directory: this user alone, its group too, or"
        " everybody (docs/operations.md)",
    )
    slot: Annotated[str, NAME, _FROM_MIRROR] = Field(
        default_factory=_default_name, description="Name of the replication slot"
    )
    publication: Annotated[str, NAME, _FROM_MIRROR] = Field(
        default_factory=_default_name, description="Name of the publication"
    )
    master: Annotated[str, Unit("MASTER", "a Spark master URL")] = Field(default="local[*]", description="Spark master")

    files_per_hour: Annotated[
        int | None,
        Field(ge=0),
        Unit("FILES", "files; 0 for no ceiling"),
        DefaultText("200,000 in object stores, none in directories"),
    ] = Field(
        default=None,
        description="Ceiling on the files that commits of the stream write in an hour, each a PUT request of an object"
        " store (docs/operations.md)",
        examples=[200_000],
    )
    batch_bytes: Size = Field(
        default=ByteSize(16 * _MIB), description="Publish a batch when it holds this many bytes of the stream"
    )
    segment_bytes: Size = Field(
        default=ByteSize(4 * _MIB), description="Bytes of the stream that one Spark task decodes"
    )
    max_buffered_bytes: Size = Field(
        default=ByteSize(256 * _MIB), description="Stop reading the stream while this many bytes wait to be applied"
    )

    max_row_bytes: Size = Field(
        default=ByteSize(256 * _MIB),
        description="Fail a table when a single row change takes more than this many bytes of the stream",
    )

    copy_chunk_bytes: Size = Field(
        default=ByteSize(64 * _MIB),
        description="Bytes of the heap that one copy task reads; up to four times as many of a large partition of a"
        " tiered table, and of a table that --partition-by divides",
    )
    copy_workers: Annotated[
        int, Field(ge=1, le=256), Unit("CHUNKS", "chunks"), DefaultText("one for each core that the process may use")
    ] = Field(default_factory=available_cores, description="Number of copy chunks read at the same time")

    copy_rate_bytes: SizeOrNone = Field(
        default=ByteSize(0),
        description="Most bytes per second that all copies of tables together read from the heap, on average over a"
        " few chunks; 0: no limit",
    )

    convert_age: Seconds = Field(
        default=10.0,
        description="Convert a table's equality deletes to position deletes when the oldest is this many seconds old",
    )
    convert_rows: Annotated[int, Field(ge=1), ROWS] = Field(
        default=50_000,
        description="Convert a table's equality deletes to position deletes as soon as the table has this many",
    )

    fold_age: Seconds = Field(
        default=10.0, description="Fold a table's corrections into the lake when the oldest is this many seconds old"
    )
    fold_rows: Annotated[int, Field(ge=1, le=1_000_000), ROWS] = Field(
        default=20_000,
        description="Fold a table's corrections as soon as it has this many; also the most that one fold takes",
    )

    merge_bytes: SizeOrNone = Field(
        default=ByteSize(32 * _MIB),
        description="Merge a table's small data files into files of up to this size, those of change feeds into files"
        " four times as large; 0 switches merging off",
    )

    index_memory: SizeOrNone = Field(
        default=ByteSize(1024 * _MIB),
        description="Memory for key indexes, which let deletes be written by position at once, and for rows' IDs"
        " (format version 3); 0 switches indexes off",
    )
    index_disk: SizeOrNone = Field(
        default=ByteSize(8192 * _MIB),
        description="Room for key indexes and rows' IDs that do not fit into index_memory, and for hashes of rows"
        " without a key, in TMPDIR or /var/tmp; 0: none",
    )

    idle_publish_bytes: Size = Field(
        default=ByteSize(256 * 1024),
        description="When idle, publish the frontier after this many bytes of WAL without changes of mirrored tables",
    )
    idle_publish_interval: Seconds = Field(
        default=10.0, description="When idle, publish the frontier at most once in this many seconds"
    )
    retention_interval: Annotated[float, Field(ge=0.05, le=3600), SECONDS] = Field(
        default=2.0, description="Seconds between checks for partitions that may leave the heap"
    )
    wal_guard: Annotated[
        Literal["off", "warn", "fail-table", "drop-slot"], Unit("off|warn|fail-table|drop-slot", "a word")
    ] = Field(
        default="off", description="What the pump does before the slot keeps more WAL than it may (docs/operations.md)"
    )
    wal_guard_bytes: SizeOrNone = Field(
        default=ByteSize(0),
        description="WAL that the slot may keep, besides what max_slot_wal_keep_size allows; 0 for no such limit",
    )
    wal_warn_within: Seconds = Field(
        default=7200.0, description="Warn when the slot would be lost within this many seconds"
    )
    wal_act_within: Seconds = Field(
        default=600.0,
        description="Fail a table, or drop the slot, as wal_guard says, when the slot would be lost within this many"
        " seconds",
    )
    lock_timeout: Annotated[float, Field(gt=0, le=3600), SECONDS] = Field(
        default=2.0, description="Seconds that register waits for a table's lock before it gives up and tries again"
    )
    publish_attempts: Annotated[int, Field(ge=1, le=1000), Unit("TRIES", "tries")] = Field(
        default=16, description="Maximum number of attempts for one publish"
    )
    publish_backoff_max: Seconds = Field(
        default=10.0, description="Longest pause in seconds between two attempts to publish"
    )
    reconnect_backoff_max: Seconds = Field(
        default=30.0, description="Longest pause in seconds between two attempts to reconnect"
    )

    maintain_interval: Seconds = Field(
        default=15.0, description="Seconds between checks of `maintain --serve` for due maintenance"
    )
    maintain_share: Annotated[float, Field(gt=0, le=1), Unit("SHARE", "a share: 0.5 is half of the time")] = Field(
        default=0.5,
        description="Largest share of the time that `maintain --serve` spends on work that no command requested",
    )
    maintain_cores: Annotated[int, Field(ge=1, le=256), CORES, DefaultText("half of those that it may use")] = Field(
        default_factory=lambda: max(1, available_cores() // 2),
        description="Cores for the local Spark of maintenance; not used with --master",
    )
    maintain_memory: Size = Field(
        default=ByteSize(1024 * _MIB), description="Java heap size for the local Spark of maintenance"
    )

    storage_endpoint: Annotated[str | None, Unit("URL", "a URL")] = Field(
        default=None,
        description="Endpoint URL of the object store, for storage other than AWS, Google and Azure",
        examples=["http://127.0.0.1:9000"],
    )
    storage_region: Annotated[str | None, Unit("REGION", "text")] = Field(
        default=None, description="S3 region", examples=["eu-central-1"]
    )
    storage_access_key: Annotated[str | None, Unit("KEY", "text")] = Field(
        default=None, repr=False, description="S3 access key ID", examples=["access key ID"]
    )
    storage_secret_key: Annotated[SecretStr | None, Unit("KEY", "text")] = Field(
        default=None,
        description="S3 secret access key; key of an Azure storage account",
        examples=["secret access key"],
    )
    storage_session_token: Annotated[SecretStr | None, Unit("TOKEN", "text")] = Field(
        default=None,
        description="S3 session token; SAS token of Azure; OAuth2 token of Google",
        examples=["session token"],
    )
    storage_fsync: Annotated[bool, Unit("true|false", "true or false")] = Field(
        default=True, description="Call fsync on local files before a publish refers to them"
    )

    listen: Annotated[str | None, Unit("HOST:PORT", "a host and a port; a port alone is one of 127.0.0.1")] = Field(
        default=None,
        description="Serve metrics, probes and a status page by HTTP at this address",
        examples=["127.0.0.1:9187"],
    )
    listen_token: Annotated[SecretStr | None, Unit("TOKEN", "text")] = Field(
        default=None,
        description="Token for the HTTP port; needed where others than this machine can reach it",
        examples=["a-long-random-text"],
    )
    loads: Annotated[bool, Unit("true|false", "true or false")] = Field(
        default=False, description="Take labelled loads by HTTP at that address: PUT /load/TABLE (docs/loads.md)"
    )
    load_token: Annotated[SecretStr | None, Unit("TOKEN", "text")] = Field(
        default=None,
        description="Token for loads by HTTP, another than listen_token; needed where that is",
        examples=["another-long-random-text"],
    )
    load_bytes: Size = Field(default=ByteSize(4096 * _MIB), description="Largest body in bytes of a load by HTTP")
    catalog: Annotated[bool, Unit("true|false", "true or false")] = Field(
        default=False,
        description="Serve the mirror as an Iceberg REST catalog at that address, too: /iceberg (docs/rest-catalog.md)",
    )
    lease_timeout: Seconds = Field(
        default=900.0,
        description="Seconds that a moment which a client of the catalog has attached lasts after its last load",
    )
    vend_credentials: Annotated[bool, Unit("true|false", "true or false")] = Field(
        default=False,
        description="Give clients of the catalog that ask for them the credentials of the tables' storage profiles",
    )
    access_file: Annotated[str | None, Unit("FILE", "a path")] = Field(
        default=None,
        description="TOML file with the issuer of clients' tokens, and which tables each client may read, load and"
        " write at that address (docs/rest-catalog.md)",
        examples=["access.toml"],
    )
    ready_max_lag: Seconds = Field(default=300.0, description="Report not ready at /readyz beyond this lag in seconds")

    log_format: Annotated[Literal["auto", "human", "json"], Unit("auto|human|json", "a word")] = Field(
        default="auto", description="Format of log lines on stderr: human, json, or auto (human on a terminal)"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Unit("debug|info|warning|error", "a word")] = (
        Field(default="info", description="Lowest severity that is logged")
    )

    limits: InternalLimits = Field(default=InternalLimits(), repr=False, description="Internal limits, for tests")

    @field_validator("mirror")
    @classmethod
    def _mirror_name(cls, value: str | None) -> str | None:
        if value is not None and not NAME_OF_MIRROR.fullmatch(value):
            raise ValueError("a mirror's name has 1 to 32 characters, all of them a-z, 0-9 or _; leave it out for none")
        return value

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, value: str) -> str:
        # As ReplicationSlotValidateName in the server: other names are refused, quoted or not.
        if not re.fullmatch(r"[a-z0-9_]{1,63}", value):
            raise ValueError("a slot name has 1 to 63 characters, all of them a-z, 0-9 or _")
        return value

    @field_validator("publication")
    @classmethod
    def _publication_name(cls, value: str) -> str:
        if not value or len(value.encode()) > 63:
            raise ValueError("a publication name has 1 to 63 bytes")
        return value

    @field_validator("password_command")
    @classmethod
    def _password_program(cls, value: str | None) -> str | None:
        if value is not None:
            command_words(value)
        return value

    @field_validator("warehouse")
    @classmethod
    def _warehouse_uri(cls, value: str | None) -> str | None:
        return None if value is None else warehouse_uri(value)

    @field_validator("listen")
    @classmethod
    def _listen_address(cls, value: str | None) -> str | None:
        if value is not None:
            host_and_port(value)
        return value

    @field_validator("listen_token", "load_token")
    @classmethod
    def _token_text(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(r"[!-~]{16,}", value.get_secret_value()):
            raise ValueError(
                "a token has 16 or more ASCII characters without spaces, such as of `openssl rand -hex 24`"
            )
        return value

    def require_dsn(self) -> str:
        """The DSN, with the program that prints its password if there is one, for this mirror. Raises UsageError if
        none was given."""
        if not self.dsn:
            raise UsageError(
                "no database was given", f'give --dsn, set {ENV_PREFIX}DSN, or put dsn = "..." into {CONFIG_FILE}'
            )
        from mirror_pump.database.mirror_dsn import sets_mirror, with_mirror

        dsn = self.dsn
        if self.mirror is not None:
            dsn = with_mirror(dsn, self.mirror)
        elif sets_mirror(dsn):
            # Slot, publication and printed commands would be those of another mirror.
            raise UsageError(f"the connection string sets {MIRROR_OPTION}", "leave that out, and give --mirror NAME")
        if isinstance(self.dsn, RotatingDsn):
            return RotatingDsn(dsn, self.dsn.command, self.dsn.password)
        return dsn if self.password_command is None else RotatingDsn(dsn, self.password_command)

    def require_warehouse(self) -> str:
        """The warehouse's URI, without a trailing slash. Raises UsageError if none is known."""
        if not self.warehouse:
            raise UsageError("no warehouse is known", "run `mirror-pump init --warehouse URI` first")
        return self.warehouse

    def environment(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Environment variables that give another process these settings, or those in `names`. Contains secrets: no
        other user of a machine can read a process's environment, but everybody its command line."""
        variables = {}
        for name in type(self).model_fields if names is None else names:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            elif isinstance(value, InternalLimits):
                value = value.model_dump_json()
            if value is not None:
                variables[ENV_PREFIX + name.upper()] = str(value)
        return variables

    @property
    def file_mode(self) -> int:
        """The permissions of new files in a local warehouse."""
        return {"private": 0o600, "group": 0o640, "public": 0o644}[self.warehouse_mode]

    @property
    def storage_properties(self) -> dict[str, str]:
        """The storage options under pyiceberg's FileIO names (`s3.endpoint` ...), for the kind of store that the
        warehouse is in, without one for S3. Contains secrets: never print it."""
        return self.storage_properties_for(kind_of(self.warehouse or "") or S3)

    def storage_properties_for(self, kind: StorageKind) -> dict[str, str]:
        """As `storage_properties`, for a kind of store."""
        given = {
            "endpoint": self.storage_endpoint,
            "region": self.storage_region,
            "access_key": self.storage_access_key,
            "secret_key": _reveal(self.storage_secret_key),
            "session_token": _reveal(self.storage_session_token),
        }
        names = kind.short_names
        return {names[key]: value for key, value in given.items() if value is not None and key in names}


USER_SETTINGS = tuple(name for name in Settings.model_fields if name != "limits")
"""Names of the settings that users know: all but the internal limits."""


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def host_and_port(text: str) -> tuple[str, int]:
    """The two parts of an address to listen at: `host:port`, `[::1]:port`, or a port of 127.0.0.1. Raises
    ValueError."""
    host, _, port = text.rpartition(":")
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]\s]*)", host)
    if match is None or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError(f"{text!r} is not an address to listen at; give 127.0.0.1:9187, [::1]:9187 or 9187")
    return match[1] or match[2] or "127.0.0.1", int(port)


def warehouse_uri(text: str) -> str:
    """The URI of a warehouse that is given as a URI or a directory. Raises ValueError for an unsupported scheme."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        # Not Path.as_uri(): it percent-encodes, and Hadoop, DuckDB and pyarrow do not all decode.
        return f"file://{Path(text).expanduser().resolve()}" if text else _refuse_warehouse(text)
    if scheme == "file" and rest.startswith("/"):
        if ".." in rest.split("/"):
            return warehouse_uri(rest)
        return "file:///" + rest.strip("/")
    kind = kind_of(text)
    uri = kind.normalised(text) if kind is not None and kind.scheme == scheme else None
    return uri or _refuse_warehouse(text)


def _refuse_warehouse(text: str) -> str:
    forms = " or ".join(kind.form for kind in KINDS)
    raise ValueError(f"{text!r} is not a warehouse; give a directory, file:///absolute/path, {forms}")


def load_settings(options: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Settings from all sources. `options` are those of the command line, by field name; None means not given.

    Raises UsageError, which names the wrong option, variable or key, but never its value: it may be a secret.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    from_file = _read_toml(config)
    from_environment = read_environment()
    try:
        return Settings(**{**from_file, **from_environment, **given})
    except ValidationError as error:
        raise UsageError(_explain(error, given, from_environment, config)) from None


def read_environment() -> dict[str, Any]:
    """The settings that the environment has, not checked. Raises UsageError for limits that cannot be read."""
    try:
        return {name: value for name, value in EnvSettingsSource(Settings)().items() if name in Settings.model_fields}
    except SettingsError:
        raise UsageError(f"{ENV_PREFIX}LIMITS is not valid JSON", f"set {ENV_PREFIX}LIMITS__NAME instead") from None


def _read_toml(config: Path | None) -> dict[str, Any]:
    path = Path(CONFIG_FILE) if config is None else config
    try:
        values = read_toml(path)
    except FileNotFoundError:
        if config is None:
            return {}
        raise UsageError(f"{path}: no such file", "give --config an existing file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "it must be a TOML file of key = value lines") from None
    unknown = sorted(set(values) - set(USER_SETTINGS))
    if unknown:
        gone = [f"{name} is gone, see {FORMER_SETTINGS[name]}" for name in unknown if name in FORMER_SETTINGS]
        remedy = "; ".join((*gone, f"known keys: {', '.join(USER_SETTINGS)}"))
        raise UsageError(f"{path}: unknown key{'s'[: len(unknown) != 1]} {', '.join(unknown)}", remedy)
    return values


def _explain(
    error: ValidationError, given: Mapping[str, Any], environment: Mapping[str, Any], config: Path | None
) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        name = str(problem["loc"][0]) if problem["loc"] else "settings"
        if problem["type"] == "default_factory_not_called":
            # It follows from another one.
            continue
        if name in given:
            where = "--" + name.replace("_", "-")
        elif name in environment:
            where = ENV_PREFIX + "__".join(map(str, problem["loc"])).upper()
        else:
            where = f"{name} in {config or CONFIG_FILE}"
        lines.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
