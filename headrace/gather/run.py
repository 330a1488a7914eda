"""What a run must know when it is taken up again: what was asked, where the results stood, and which lines the broker has.

Files beside the output, whole after `kill -9` at any moment: the one in JSON is replaced at once, of the other each byte stands for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from headrace.errors import Refused

VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run's files are. `output` None: the results go to stdout, and the files away with the process."""

    output: Path | None
    folder: Path

    @property
    def run(self) -> Path:
        return self._beside("run.json")

    @property
    def sent(self) -> Path:
        return self._beside("sent")

    @property
    def results(self) -> Path:
        return self._beside("results.jsonl")

    def _beside(self, name: str) -> Path:
        return self.folder / (f"{self.output.name}.headrace.{name}" if self.output is not None else name)


@dataclass(frozen=True, slots=True)
class Run:
    """`positions`: by partition of llm_results the next offset to read, at first where it stood before anything was sent.

    `gathered`: how many lines were written down by then, at least. `output_bytes`: the output up to the first line that says
    `unanswered`, which waiting on replaces. `finished`: how many ended how.
    """

    digest: str
    requests: int
    order: str
    main: str
    results: str
    topic_id: str | None = None
    cluster: str | None = None
    positions: Mapping[int, int] = field(default_factory=dict)
    gathered: int = 0
    output_bytes: int | None = None
    finished: Mapping[str, int] | None = None
    version: int = VERSION

    def save(self, place: Place) -> None:
        """Replace what was saved; it is on the disk when this returns."""
        temporary = place.run.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(orjson.dumps(asdict(self), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place.run)

    def finish(self, place: Place, counts: Mapping[str, int]) -> None:
        """Nothing is left to do: what was only there to be taken up goes away."""
        replace(self, finished=dict(counts)).save(place)
        place.sent.unlink(missing_ok=True)
        place.results.unlink(missing_ok=True)


def taken_up(
    place: Place, wanted: Run, begin: Callable[[], tuple[Mapping[int, int], str, str | None]], cluster: Callable[[], str | None]
) -> Run:
    """The run that was begun here, or a new one, which begins where the results stand now. Raises Refused where it is another's.

    `cluster` is asked only where something is left to do: whoever sends it all on another cluster pays for it again.
    """
    if not place.run.exists():
        if place.output is not None and place.output.exists() and place.output.stat().st_size:
            raise Refused(f"{place.output}: exists, and no run began it; remove it, or name another with --output")
        positions, topic_id, begun_on = begin()
        run = replace(wanted, positions=dict(positions), topic_id=topic_id, cluster=begun_on)
        run.save(place)
        return run
    run = read(place.run)
    begun = {"the input": (run.digest, wanted.digest), "--order": (run.order, wanted.order)}
    begun |= {"the topic of requests": (run.main, wanted.main), "the topic of results": (run.results, wanted.results)}
    if changed := [what for what, (was, now) in begun.items() if was != now]:
        raise Refused(
            f"{place.output}: was begun with something else, {' and '.join(changed)} changed since; give what it was begun with, or name another --output"
        )
    if run.finished is None and run.cluster is not None and (here := cluster()) not in (None, run.cluster):
        raise Refused(
            f"{place.output}: was begun on another Kafka cluster ({run.cluster}, this is {here}); "
            "set HEADRACE_KAFKA_BOOTSTRAP to that one, or name another --output"
        )
    return run


def read(path: Path) -> Run:
    """What was saved. Raises Refused where it cannot be read."""
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
        if found["version"] != VERSION:
            raise Refused(f"{path}: was written by another version of headrace ({found['version']}); finish it with that one")
        found["positions"] = {int(partition): int(offset) for partition, offset in found["positions"].items()}
        return Run(**found)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Refused(f"{path}: cannot be read as the state of a run; remove it and the output to begin anew") from None


@contextlib.contextmanager
def alone(place: Place) -> Iterator[None]:
    """One process a run. Raises Refused while another has it."""
    path = place.run.with_suffix(".lock")
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(file.fileno()).st_ino == path.stat().st_ino  # else its holder has just removed it
        except OSError:
            held = False
        if not held:
            raise Refused(f"{place.output}: another process gathers into it; let it end")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Sent:
    """Which requests the broker has: a byte each, in a mapped file."""

    def __init__(self, path: Path, count: int) -> None:
        with path.open("a+b") as file:
            if os.fstat(file.fileno()).st_size != max(1, count):
                os.truncate(file.fileno(), max(1, count))
            self._bytes = mmap.mmap(file.fileno(), max(1, count))
        self.count = sum(self._bytes[:count])

    def __contains__(self, index: int) -> bool:
        return self._bytes[index] == 1

    def add(self, index: int) -> None:
        """The broker has it."""
        if not self._bytes[index]:
            self._bytes[index] = 1
            self.count += 1

    def forget(self, index: int) -> None:
        """It is to be sent again."""
        if self._bytes[index]:
            self._bytes[index] = 0
            self.count -= 1

    def close(self) -> None:
        """On the disk."""
        self._bytes.flush()
        self._bytes.close()
