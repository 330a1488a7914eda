"""`headrace worker`: run lanes until a signal."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer


class LaneName(StrEnum):
    """What can be run."""

    MAIN = "main"
    RETRY = "retry"
    DLQ = "dlq"
    ALL = "all"


def worker(
    lanes: Annotated[
        list[LaneName], typer.Argument(metavar="LANE", help="main, retry, dlq, or all: each lane has its own consumer group.")
    ],
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="package.module:function instead of one call to the model.")] = None,
    json: Annotated[
        bool | None,
        typer.Option("--json/--no-json", help="JSON log lines; by default HEADRACE_LOG_FORMAT, else unless stderr is a terminal."),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error; by default HEADRACE_LOG_LEVEL, else info."),
    ] = None,
) -> None:
    """Run one lane or several in this process, until SIGTERM or Ctrl-C.

    The first signal lets calls in flight end (HEADRACE_GRACE_S, 25 s); a second one does not wait. Exits 0 after a
    graceful stop, 2 where the configuration or the topics cannot work, 5 where another process has the same
    HEADRACE_INSTANCE, 1 for anything else.
    """
    from headrace.instrument.log import configure
    from headrace.process import configured, run

    configure(json=json, level=log_level)
    settings = configured()
    if handler is not None:
        settings = settings.model_copy(update={"handler": handler})
    raise typer.Exit(run(settings, [lane.value for lane in lanes]))
