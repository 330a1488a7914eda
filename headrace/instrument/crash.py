"""What may be told of an exception that was not foreseen: where it happened and its type, and its text only where that cannot quote a record.

HEADRACE_DEBUG=1 tells everything.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType

from headrace.errors import HeadraceError

# Their texts name code, files and servers. KafkaException is known by name: its module is not ours to import here.
_PLAIN = (HeadraceError, OSError, ImportError, AttributeError, NameError, RecursionError, MemoryError, NotImplementedError)
_PLAIN_NAMES = frozenset({"KafkaException"})


def words_of(error: BaseException) -> str:
    """The text of an exception that cannot quote a record, else its type alone."""
    kind = type(error).__name__
    if isinstance(error, HeadraceError):
        return str(error)
    if os.environ.get("HEADRACE_DEBUG") == "1" or isinstance(error, _PLAIN) or kind in _PLAIN_NAMES:
        return f"{kind}: {error}"
    return f"{kind} (its text may quote a record; HEADRACE_DEBUG=1 shows it)"


def lines_of(error: BaseException, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """As a traceback is printed, causes first, with `words_of` for texts."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from lines_of(cause, seen | {id(error)})
        yield "\nand then:\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield words_of(error) + "\n"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from lines_of(inner, seen | {id(error)})


def install() -> None:
    """Exceptions that nobody catches, in any thread or task, are told so, on stderr."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            sys.stderr.write("".join(lines_of(error)))

    def hook_of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            sys.stderr.write("".join(lines_of(args.exc_value)))

    sys.excepthook = hook
    threading.excepthook = hook_of_thread
    if logging.lastResort is not None:  # where asyncio tells of a task whose exception nobody asked for
        logging.lastResort.setFormatter(_Discreet())


class _Discreet(logging.Formatter):
    def formatException(  # noqa: N802  the base class names it
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "".join(lines_of(ei[1])).rstrip("\n") if ei[1] is not None else ""
