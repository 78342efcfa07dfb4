"""One name for each file: engines name local files with and without a scheme, and know S3 by several."""

from __future__ import annotations

import re

from mirror_pump.lake.storage import local_path

_S3 = re.compile("s3[an]?://")


def same_name(location: str) -> str:
    """Equal for two locations of one file."""
    local = local_path(location)
    return _S3.sub("s3://", location, count=1) if local is None else str(local)
