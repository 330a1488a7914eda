"""A handler of two steps: one call of the model, then a note in a file (`ONCE_NOTES`), which must not be written twice."""

from __future__ import annotations

import os
from pathlib import Path

from headrace import Context, Request, Response


async def handle(request: Request, ctx: Context) -> Response:
    answer = await ctx.llm.call(request)
    await ctx.once("note", lambda: note(request.request_id))
    return answer


def note(request_id: str) -> str:
    with Path(os.environ["ONCE_NOTES"]).open("a", encoding="utf-8") as file:
        file.write(request_id + "\n")
    return request_id
