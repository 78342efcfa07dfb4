"""Credentials for the files of one table, by a role's session (STS AssumeRole) whose policy names the table's prefix.

Invariant: what a client with grants gets opens no file but those below the table's directory, and writes only if the
client may. The store enforces that; stores that accept policies of sessions and do not apply them must not be used so.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirror_pump.errors import LakeError
from mirror_pump.ops.clients.access_file import CredentialsRole
from mirror_pump.storage_kinds import S3

_MOST_CACHED = 10_000
_PATIENCE = 5.0
"""Seconds that the service has to answer."""
_KEY, _SECRET, _TOKEN = (S3.short_names[name] for name in ("access_key", "secret_key", "session_token"))
_EXPIRES = f"{_TOKEN}-expires-at-ms"


@dataclass(frozen=True)
class CredentialsScope:
    """For whom, and for what, credentials are."""

    role: CredentialsRole
    client: str
    """Name of the role's session: the store's own log has it."""
    root: str
    """The table's directory, as a URI."""
    writes: bool

    def policy(self) -> str:
        """What the session may do, as AWS has policies."""
        bucket, _, prefix = self.root.partition("://")[2].partition("/")
        partition = self.role.role.split(":")[1] if self.role.role.startswith("arn:aws") else "aws"
        files, below = f"arn:{partition}:s3:::{_literal(bucket)}", f"{_literal(prefix.rstrip('/'))}/*"
        actions = ["s3:GetObject", *(("s3:PutObject", "s3:DeleteObject") if self.writes else ())]
        condition = {"StringLike": {"s3:prefix": [below]}}
        statements = [
            {"Effect": "Allow", "Action": actions, "Resource": [f"{files}/{below}"]},
            {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [files], "Condition": condition},
        ]
        return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


@dataclass(frozen=True)
class _RoleSession:
    """Credentials, and from when on there should be newer ones."""

    properties: Mapping[str, str] = field(repr=False)
    renewed_at: float
    """By time.monotonic()."""


class TableCredentials:
    """Gets credentials, and keeps them for half of their time. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[CredentialsScope, _RoleSession] = {}

    def properties(self, scope: CredentialsScope, storage: Mapping[str, str]) -> Mapping[str, str]:
        """FileIO properties. `storage`: those by which this process reaches the storage, and assumes the role. Raises
        LakeError."""
        now = time.monotonic()
        with self._lock:
            session = self._sessions.get(scope)
        if session is not None and now < session.renewed_at:
            return session.properties
        session = _RoleSession(_assumed(scope, storage), now + scope.role.seconds / 2)
        with self._lock:
            if len(self._sessions) >= _MOST_CACHED:
                self._sessions = {key: other for key, other in self._sessions.items() if now < other.renewed_at}
            if len(self._sessions) < _MOST_CACHED:
                self._sessions[scope] = session
        return session.properties


def _assumed(scope: CredentialsScope, storage: Mapping[str, str]) -> Mapping[str, str]:
    boto3, config, errors = _library()
    settings = config(connect_timeout=_PATIENCE, read_timeout=_PATIENCE, retries={"total_max_attempts": 2})
    try:
        service = boto3.client(
            "sts",
            region_name=storage.get(S3.short_names["region"]) or "us-east-1",
            endpoint_url=scope.role.endpoint or storage.get(S3.short_names["endpoint"]),
            aws_access_key_id=storage.get(_KEY),
            aws_secret_access_key=storage.get(_SECRET),
            aws_session_token=storage.get(_TOKEN),
            config=settings,
        )
        answer = service.assume_role(
            RoleArn=scope.role.role,
            RoleSessionName=f"mirror-pump-{re.sub(r'[^A-Za-z0-9_=,.@-]', '_', scope.client)}"[:64],
            DurationSeconds=scope.role.seconds,
            Policy=scope.policy(),
        )["Credentials"]
    except errors as error:
        raise LakeError(
            f"no credentials for the files below {scope.root}: {error}",
            "let the server's own identity assume the role that the access file names",
        ) from error
    return {
        _KEY: answer["AccessKeyId"],
        _SECRET: answer["SecretAccessKey"],
        _TOKEN: answer["SessionToken"],
        _EXPIRES: str(int(answer["Expiration"].timestamp() * 1000)),
    }


def _literal(text: str) -> str:
    """A text in a policy that has no wildcards and no variables."""
    return re.sub(r"[*?$]", lambda match: f"${{{match[0]}}}", text)


def _library() -> tuple[Any, Any, tuple[type[Exception], ...]]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise LakeError(
            "boto3, which gets credentials for single tables, is not installed", "pip install 'mirror-pump[oauth]'"
        ) from error
    return boto3, Config, (BotoCoreError, ClientError)
