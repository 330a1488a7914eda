"""A handler's own lines name the request it works at, through the attempt that runs it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import structlog
from structlog.testing import capture_logs

from headrace.attempt import Attempts
from headrace.clock import Clock
from headrace.config import Settings
from headrace.context import Context
from headrace.envelope import Job, Record, Request, Response, Trail
from headrace.instrument import silent
from headrace.instrument.foreign import Foreign
from headrace.pauses import Pauses

TRACE = "0af7651916cd43dd8448eb211c80319c"
log = logging.getLogger("mypackage.handler")


async def handle(request: Request, ctx: Context) -> Response:
    log.warning("began")
    await asyncio.gather(asyncio.to_thread(log.warning, "in a thread"), inner())
    return Response(b"{}")


async def inner() -> None:
    structlog.get_logger().info("in a task")


def job(number: int, traceparent: str | None) -> Job:
    record = Record("main", 0, number, 1, None, b"{}", [], 1)
    request = Request(request_id=f"r-{number}", body={"model": "m"})
    return Job(record, Trail(record.position, traceparent=traceparent, retry_count=number), request.request_id, "f", request)


async def test_every_line_of_a_handler_names_its_request() -> None:
    """Of requests that are handled side by side each line names its own: from tasks, from threads, from either kind of logger."""
    settings, model = Settings(), Any
    attempts = Attempts(settings, handle, model, Pauses(settings.pause), Clock(), tell=silent)  # type: ignore[arg-type]
    bridge = Foreign()
    log.addHandler(bridge)
    try:
        with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            traces = (f"00-{TRACE}-b7ad6b7169203331-01", None, "bait")
            await asyncio.gather(*(attempts(job(number, trace)) for number, trace in enumerate(traces)))
            log.warning("after")
    finally:
        log.removeHandler(bridge)
    told = {(line["event"], line.get("request_id"), line.get("trace_id"), line.get("attempt")) for line in lines}
    events = ("began", "in a thread", "in a task")
    assert told == {(event, "r-0", TRACE, 1) for event in events} | {
        (event, f"r-{number}", None, number + 1) for event in events for number in (1, 2)
    } | {("after", None, None, None)}
