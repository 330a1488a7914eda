"""Events as structured log lines on stderr: JSON in a container, readable on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog

from headrace.errors import ConfigError
from headrace.instrument import crash, foreign
from headrace.instrument.events import LEVELS, QUIET

OF_PARTITIONS = frozenset({"assigned", "revoked", "partition_lost"})
EVENT_WIDTH = 22
FORMATS = ("json", "console")
LEVEL_NAMES = ("debug", "info", "warning", "error")
_ASKED_FOR = frozenset({"stop"})  # a lane that is being stopped pauses first
_CLEARER = {("wheels_assigned", "wheels"): "timing_wheels_owned"}


def configure(
    *, stream: TextIO | None = None, level: str | None = None, json: bool | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Log to `stream` (stderr): what is not given is HEADRACE_LOG_FORMAT's and HEADRACE_LOG_LEVEL's, else JSON unless it is a terminal, at info.

    Lines of the standard library's loggers come the same way; those of clients that print requests from WARNING on only. Raises ConfigError.
    """
    out = stream or sys.stderr
    said_format, said_level = _said(os.environ if env is None else env)
    level = level or said_level or "info"
    as_json = json if json is not None else said_format == "json" if said_format else not out.isatty()
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=EVENT_WIDTH)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _stamp,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    crash.install()
    foreign.install(level)


def _said(env: Mapping[str, str]) -> tuple[str, str]:
    """What the environment says of format and level; empty where it says nothing."""
    found, faults = [], []
    for name, known in (("HEADRACE_LOG_FORMAT", FORMATS), ("HEADRACE_LOG_LEVEL", LEVEL_NAMES)):
        value = env.get(name, "").strip().lower()
        if value and value not in known:
            faults.append(f"{name}: {value[:32]!r} is none of {', '.join(known)}")
        found.append(value)
    if faults:
        raise ConfigError(faults)
    return found[0], found[1]


def _stamp(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """RFC 3339, UTC, milliseconds."""
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def summarised(partitions: Iterable[str]) -> str:
    """`topic/partition` names as `topic: 0-3 7`, with commas between topics; those of another form as they are."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in partitions:
        topic, slash, number = name.rpartition("/")
        if slash and number.isdecimal():
            numbers.setdefault(topic, []).append(int(number))
        else:
            others.append(name)
    return ", ".join([*(f"{topic}: {_ranges(sorted(set(found)))}" for topic, found in sorted(numbers.items())), *others])


def _ranges(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


class LogHook:
    """A hook that writes one line per event, but for those so frequent that only counters want them."""

    def __init__(self, **bound: Any) -> None:
        self._log = structlog.get_logger().bind(**bound)

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        if LEVELS.get(name) == QUIET or (name in OF_PARTITIONS and not fields.get("partitions")):
            return
        if name in OF_PARTITIONS:
            fields = {**fields, "partitions": summarised(fields["partitions"])}
        getattr(self._log, _level(name, fields))(name, **{_CLEARER.get((name, field), field): value for field, value in fields.items()})


def _level(name: str, fields: Mapping[str, Any]) -> str:
    if name == "lane_paused" and fields.get("reason") in _ASKED_FOR:
        return "info"
    return LEVELS.get(name, "warning")
