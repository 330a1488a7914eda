"""The standard library's logging, written as our own lines are: a handler's `logging.getLogger(__name__)` needs no set-up, and its lines name their request."""

from __future__ import annotations

import logging

import structlog

from headrace.instrument import crash


class Foreign(logging.Handler):
    """Passes records on to structlog. Of an exception it says what `crash` may say: its text may quote a record."""

    def emit(self, record: logging.LogRecord) -> None:
        """In the context of whoever logs."""
        try:
            say = getattr(structlog.get_logger(), _LEVELS.get(record.levelno, "info"))
            error = record.exc_info[1] if record.exc_info else None
            more = {} if error is None else {"exception": "".join(crash.lines_of(error)).rstrip("\n")}
            text = record.getMessage()
            if error is not None and record.name == "asyncio":  # its further lines hold the exception as it is
                text = text.partition("\n")[0]
            say(text, logger=record.name, **more)
        except Exception:  # noqa: BLE001  as every handler of logging: it says so on stderr, and the program goes on
            self.handleError(record)


_WORDY = ("openai", "aiohttp", "httpx", "httpcore", "urllib3", "asyncio", "headrace.kafka")
_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "critical"}


def install(level: str) -> None:
    """Once; again it only sets the level. Never below INFO: what libraries say at DEBUG may hold requests and keys, so each is asked by name."""
    root = logging.getLogger()
    if not any(isinstance(handler, Foreign) for handler in root.handlers):
        root.addHandler(Foreign())
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))
    for name in _WORDY:
        logging.getLogger(name).setLevel(logging.WARNING)
