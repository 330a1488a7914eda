"""The jars of the local broker: resolved once from a Maven repository, then kept whole in the user's cache.

Leaves to others which Java runs them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.errors import StackError

KAFKA_VERSION = "4.4.0"
_KAFKA = ("org.apache.kafka", "kafka_2.13")
_LOG4J = "org.apache.logging.log4j"
_AT_ONCE = 6  # polite to the repository, and 45 MB need no more

Say = Callable[[str], None]


def cache_dir() -> Path:
    """Return where the jars live: `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "headrace"


def kafka_jars(say: Say, cache: Path | None = None) -> list[Path]:
    """Return the class path of the broker, downloading it (about 45 MB) the first time.

    The folder appears by one rename, so an interrupted download leaves nothing that could be taken for whole.
    Raises StackError with the remedy if the resolver is missing or the download fails.
    """
    cache = cache or cache_dir()
    target = cache / f"kafka-{KAFKA_VERSION}"
    if not target.is_dir():
        _make_dir(cache)
        with _only_one(cache / ".download.lock"):
            if not target.is_dir():  # another process may have finished it meanwhile
                _download(target, say)
    jars = sorted(target.glob("*.jar"))
    if not jars:
        raise StackError(f"the broker's jars are missing from {target}: delete that folder and start again")
    return jars


def _make_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(f"cannot create the cache {path} ({error.strerror}): set XDG_CACHE_HOME") from error


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(target: Path, say: Say) -> None:
    """Resolve into a scratch repository beside the target, then rename its jars into place as one folder."""
    for stale in target.parent.glob(".part-*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
        whole = Path(scratch) / "jars"
        whole.mkdir()
        say(f"Downloading Apache Kafka {KAFKA_VERSION} (about 45 MB, once)")
        for jar in _fetch(Path(scratch) / "repository", say):
            jar.rename(whole / jar.name)
        whole.rename(target)


def _fetch(repository: Path, say: Say) -> list[Path]:
    """Download the broker, what it needs at run time, and the binding that lets it log at all."""
    context = _context(repository)
    try:
        kafka = context.project(*_KAFKA).at_version(KAFKA_VERSION)
        inputs, needed = context.resolver.resolve([context.create_dependency(_coordinate(kafka))])
        artifacts = [d.artifact for d in (*inputs, *needed) if d.scope in ("compile", "runtime")]
        # The broker logs through SLF4J and its own POM brings no binding: without this its log stays empty.
        log4j = next(a.version for a in artifacts if a.artifactId == "log4j-core")
        artifacts.append(context.project(_LOG4J, "log4j-slf4j-impl").at_version(log4j).artifact())
        return _resolve_all(artifacts, say)
    except (OSError, RuntimeError, ValueError, AssertionError, StopIteration) as error:
        raise StackError(
            f"the broker could not be downloaded ({type(error).__name__}: {str(error)[:300]}): check the network and "
            "proxy (HTTPS_PROXY), or name a mirror under [repositories] in ~/.config/jgo.conf, or set "
            "HEADRACE_TEST_KAFKA_BOOTSTRAP to a broker you have"
        ) from error


def _resolve_all(artifacts: list[Any], say: Say) -> list[Path]:
    paths: list[Path] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="jars") as pool:
        for done, path in enumerate(pool.map(lambda artifact: artifact.resolve(), artifacts), start=1):
            paths.append(Path(path))
            say(f"Downloading Apache Kafka {KAFKA_VERSION}: {done} of {len(artifacts)} files")
    return paths


def _context(repository: Path) -> Any:
    """Build jgo's resolver over a repository of our own: its whole-environment builder would fetch a second JDK."""
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError as error:
        raise StackError("the local broker needs the extra: pip install 'headrace[local]'") from error
    mirrors = GlobalSettings.load().repositories
    return MavenContext(repo_cache=repository, remote_repos={**mirrors, "central": MAVEN_CENTRAL_URL})


def _coordinate(component: Any) -> Any:
    from jgo.parse import Coordinate

    return Coordinate(groupId=component.groupId, artifactId=component.artifactId, version=component.version, scope="compile")
