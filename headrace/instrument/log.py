"""Events as structured log lines on stderr: JSON in a container, readable on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog

QUIET = frozenset({"settled", "interrupted", "claim_taken_over", "wheels_moved", "waiters_dropped"})  # one for each batch or record
WORSE = {
    "alert": "error",
    "partition_lost": "warning",
    "hook_failed": "error",
    "lane_paused": "warning",
    "records_lost": "error",
    "settle_blocked": "error",
    "settle_again": "warning",
    "producer_replaced": "warning",
    "store_unavailable": "warning",
    "target_shut": "error",
    "wheels_stalled": "error",
}


def configure(*, stream: TextIO | None = None, level: str = "info", json: bool | None = None) -> None:
    """Log to `stream` (stderr), as JSON unless it is a terminal. The openai and aiohttp loggers are kept above DEBUG: they print requests."""
    out = stream or sys.stderr
    as_json = not out.isatty() if json is None else json
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    for name in ("openai", "aiohttp", "httpx", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


class LogHook:
    """A hook that writes one line per event, but for those so frequent that only counters want them."""

    def __init__(self, **bound: Any) -> None:
        self._log = structlog.get_logger().bind(**bound)

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        if name not in QUIET:
            getattr(self._log, WORSE.get(name, "info"))(name, **fields)
