"""Where Spark keeps the jars that it has from Maven, found out without starting Spark."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.errors import UsageError

_DIRECTORY = ".ivy2.5.2"
"""Below Java's home directory, of Spark 4.1 (org.apache.spark.util.MavenUtils)."""

_SETTING = re.compile(r"^\s*spark\.jars\.ivy(?:\s*[=:]\s*|\s+)(.*\S)", re.MULTILINE)
"""In spark-defaults.conf, a file of Java properties."""


def ivy_jars() -> Path:
    """The directory of jars of a Spark that this process would start."""
    by_site = _spark_setting()
    if by_site is not None:
        return Path(by_site) / "jars"
    properties = _java_properties()
    # Java takes the home directory from the user's entry, where this process takes HOME.
    home = properties.get("user.home") or pwd.getpwuid(os.getuid()).pw_dir
    return Path(properties.get("ivy.home") or Path(home) / _DIRECTORY) / "jars"


def _spark_setting() -> str | None:
    directory = os.environ.get("SPARK_CONF_DIR")
    if not directory:
        return None
    try:
        text = (Path(directory) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return None
    values = _SETTING.findall(text)
    return values[-1] if values else None


def _java_properties() -> Mapping[str, str]:
    """System properties of the Java that runs Spark, with the options that Spark's launcher gives it; none without a
    Java that starts."""
    options = shlex.split(os.environ.get("SPARK_SUBMIT_OPTS", ""))
    try:
        command = [str(find_java_home() / "bin" / "java"), *options, "-XshowSettings:properties", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (UsageError, OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^ {4}([\w.]+) = (.*)$", done.stderr, re.MULTILINE))
