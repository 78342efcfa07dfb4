"""What a client is told about the storage of a table: where it is and, if that is allowed, credentials."""

from __future__ import annotations

from mirror_pump.credentials import is_secret
from mirror_pump.lake.storage import StorageOptions, local_path

_VENDED = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_REGION = "s3.region"
_CLIENT_REGION = "client.region"
"""Iceberg's Java library has the region under this name, others under the first."""
_ENDPOINT = "s3.endpoint"
_PATH_STYLE = "s3.path-style-access"
"""Stores other than AWS have no host of each bucket's name."""


def storage_hints(location: str, storage: StorageOptions, *, credentials: bool) -> dict[str, str]:
    """Properties of Iceberg's FileIO for a table whose metadata file is at `location`; none for a local one.

    `credentials`: with those by which this process reaches the storage. Raises CredentialsError if there are none.
    """
    if local_path(location) is not None:
        return {}
    known = storage.properties_of(location)
    found = {name: value for name, value in known.items() if name.startswith("s3.") and not is_secret(name)}
    if _REGION in found:
        found[_CLIENT_REGION] = found[_REGION]
    if _ENDPOINT in found:
        found[_PATH_STYLE] = "true"
    if credentials:
        found |= {name: known[name] for name in _VENDED if name in known}
    return found
