"""Handlers for the engine's own cost: no model, no network."""

from __future__ import annotations

import asyncio
import os

from headrace import Context, Request, Response

USAGE = {"prompt_tokens": 12, "completion_tokens": 20, "total_tokens": 32}
BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"stub","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"Hello there, this is a short answer of some twenty tokens in all, nothing more."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":20,"total_tokens":32}}'
)
WORK_S = float(os.environ.get("BENCH_WORK_S", "0.005"))


async def at_once(request: Request, ctx: Context) -> Response:
    """An answer without any work."""
    return Response(BODY, 200, "none", "stub", "r1", "stop", USAGE)


async def after_a_while(request: Request, ctx: Context) -> Response:
    """The same after BENCH_WORK_S of waiting."""
    await asyncio.sleep(WORK_S)
    return Response(BODY, 200, "none", "stub", "r1", "stop", USAGE)
