"""A web service that answers through Headrace: POST /ask submits a request and waits for its answer.

    python examples/web_service.py                     # on 127.0.0.1:8080; --port 0 takes a free one
    curl -d '{"prompt": "Say hello."}' -H 'Idempotency-Key: hello-1' http://127.0.0.1:8080/ask

The same key gets the same answer, for one call of the model. When the time is over the request is still on its way: 202, and
GET /ask/{id} takes the answer when it is there.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from aiohttp import web
from aiohttp.typedefs import Handler

from headrace import AsyncClient, HeadraceError, RequestRefused, Result, ResultConflict, ResultFailed, ResultTimeout

CLIENT = web.AppKey("client", AsyncClient)
PATIENCE_S = 20.0
LOOK_BACK = timedelta(hours=1)


async def connected(app: web.Application) -> AsyncIterator[None]:
    """One client for the process: opened with the service, closed with it."""
    async with AsyncClient(max_outstanding=2_000) as client:
        app[CLIENT] = client
        yield


async def ask(request: web.Request) -> web.Response:
    """The answer, or 202 with the id to come back with."""
    question = await request.json()
    request_id = request.headers.get("Idempotency-Key") or uuid.uuid4().hex
    try:
        result = await request.app[CLIENT].ask(
            {"request_id": request_id, "prompt": question["prompt"], "channel": "web"}, timeout=PATIENCE_S
        )
    except ResultTimeout:
        return web.json_response({"request_id": request_id, "status": "on its way"}, status=202)
    return answer(result)


async def fetch(request: web.Request) -> web.Response:
    """The answer to what was asked within the last hour, by whichever process."""
    request_id = request.match_info["request_id"]
    try:
        return answer(await request.app[CLIENT].result(request_id, since=datetime.now(UTC) - LOOK_BACK, timeout=PATIENCE_S))
    except ResultTimeout:
        return web.json_response({"request_id": request_id, "status": "on its way, or not known"}, status=202)


def answer(result: Result) -> web.Response:
    return web.json_response({"request_id": result.request_id, "status": result.status, "answer": result.text()})


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What can go wrong, as HTTP: the caller's fault, the model's, or the broker's."""
    try:
        return await handler(request)
    except (RequestRefused, ResultConflict, KeyError, TypeError, ValueError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except ResultFailed as error:
        return web.json_response({"error": error.error_class, "message": error.message}, status=502)
    except HeadraceError as error:
        return web.json_response({"error": str(error)}, status=503)


def service() -> web.Application:
    """The application, with its routes."""
    app = web.Application(middlewares=[errors])
    app.cleanup_ctx.append(connected)
    app.add_routes([web.post("/ask", ask), web.get("/ask/{request_id}", fetch)])
    return app


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=8080)
    web.run_app(service(), host="127.0.0.1", port=options.parse_args().port, loop=asyncio.new_event_loop())
