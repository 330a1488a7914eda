"""Retrieval and answer: two steps, each paid for once, whatever crashes between them. What it costs is billed once.

The passages are here to keep the example small; replace `PASSAGES` and `retrieve` with your index.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from headrace import Context, Dead, Request, Response

PASSAGES = {
    "headrace": "A headrace is the channel that brings water from the weir to the mill wheel.",
    "tailrace": "The tailrace carries the water away below the wheel; where it is choked, the wheel wades and slows.",
    "overshot": "An overshot wheel is filled from above and uses the weight of the water, up to 85 % of it.",
    "undershot": "An undershot wheel is pushed by the stream below it and uses some 30 % of its force.",
}
BEST = 2


async def handle(request: Request, ctx: Context) -> Response:
    """Answer the last message of the request from the passages that fit it best."""
    question = question_of(request)
    # A search may be repeated: where a crash leaves it in doubt, it is done again.
    found = await ctx.once("retrieve", lambda: retrieve(ctx, question), on_unknown="again")
    # A bill may not: where a crash leaves it in doubt, the ledger tells whether it was written.
    await ctx.once("bill", lambda: bill(request), on_unknown=lambda: billed(request) or bill(request))
    ctx.log.info("retrieved", passages=found)
    context = "\n".join(f"[{name}] {PASSAGES[name]}" for name in found)
    return await ctx.llm.chat(
        [
            {"role": "system", "content": f"Answer from these passages alone, and name the one you used.\n{context}"},
            {"role": "user", "content": question},
        ],
        temperature=0,
    )


def question_of(request: Request) -> str:
    """The text of the last message."""
    messages = request.body.get("messages")
    said = messages[-1].get("content") if isinstance(messages, list) and messages else None
    if not isinstance(said, str) or not said.strip():
        raise Dead("the last message holds no text to answer", code="no_question")
    return said


async def retrieve(ctx: Context, question: str) -> list[str]:
    """The names of the passages nearest to the question, the nearest first."""
    names = list(PASSAGES)
    asked, *known = (await ctx.llm.embed([question, *PASSAGES.values()])).vectors
    return sorted(names, key=lambda name: -_cosine(asked, known[names.index(name)]))[:BEST]


def bill(request: Request) -> dict[str, Any]:
    """One line in the ledger: the side effect that must not happen twice."""
    line = {"request_id": request.request_id, "agent_id": request.agent_id, "units": 1}
    with ledger().open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return line


def billed(request: Request) -> dict[str, Any] | None:
    """The request's line in the ledger, if it is there."""
    if not ledger().exists():
        return None
    lines: list[dict[str, Any]] = [json.loads(line) for line in ledger().read_text("utf-8").splitlines()]
    return next((line for line in lines if line["request_id"] == request.request_id), None)


def ledger() -> Path:
    """Where bills are written: RAG_LEDGER, else `ledger.jsonl` in the current folder."""
    return Path(os.environ.get("RAG_LEDGER", "ledger.jsonl"))


def _cosine(one: list[float], other: list[float]) -> float:
    length = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / length if length else 0.0
