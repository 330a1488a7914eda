"""Handlers of a user's that do not do as they should; named in settings as `tests.support.stalling:<name>`."""

from __future__ import annotations

import asyncio
import threading
import time

from headrace.envelope import Request, Response
from headrace.handler import Context

let_go = threading.Event()  # ends what would never end


async def clings(request: Request, ctx: Context) -> Response:
    """Swallows its deadline and every cancellation, for requests whose id says so; answers the others at once."""
    while request.request_id.startswith("stuck") and not let_go.is_set():
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue
    return Response(b"{}")


async def blocks(request: Request, ctx: Context) -> Response:
    """Keeps the event loop for itself, for requests whose id says so."""
    while request.request_id.startswith("stuck") and not let_go.is_set():
        time.sleep(0.05)  # noqa: ASYNC251  the fault that is shown
    return Response(b"{}")
