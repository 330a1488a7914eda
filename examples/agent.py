"""An agent step with tools: the model asks for them, they run, it goes on. A crash neither repeats a refund nor forgets what was said.

A model asked twice may answer differently. So what it said is kept turn by turn, and a handler that runs again follows the same path.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace import Context, Dead, Request, Response

TURNS = 6
ORDERS: dict[str, dict[str, Any]] = {"A-1": {"item": "mill stone", "cents": 12_900}, "A-2": {"item": "sluice gate", "cents": 48_000}}


async def handle(request: Request, ctx: Context) -> Response:
    """Turn after turn until the model asks for no more tools."""
    messages = list(request.body.get("messages") or ())
    for turn in range(TURNS):
        body = await ctx.once(f"turn-{turn}", lambda: said(ctx, messages), on_unknown="again")
        answer = Response(body, model=body.get("model"), usage=body.get("usage"), finish_reason=_finish(body))
        if not answer.tool_calls:
            return answer
        messages.append(answer.message)
        for number, call in enumerate(answer.tool_calls):
            value = await use(ctx, request, f"turn-{turn}/call-{number}", call)
            messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": json.dumps(value)})
    raise Dead(f"no answer after {TURNS} turns", code="too_many_turns")


async def said(ctx: Context, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the model says next. Kept whole, so it must stay below 256 KiB."""
    return (await ctx.llm.chat(messages, tools=SCHEMAS)).json()


async def use(ctx: Context, request: Request, key: str, call: dict[str, Any]) -> Any:
    """Run a tool. What the model got wrong is told to the model, which may do better."""
    asked = call.get("function") or {}
    try:
        arguments = json.loads(asked.get("arguments") or "{}")
        order = ORDERS[arguments["order"]]
    except (ValueError, KeyError, TypeError):
        return {"error": f"no such order; there are {', '.join(ORDERS)}"}
    match asked.get("name"):
        case "look_up":
            return order  # reading needs no `once`
        case "refund":
            # Money: where a crash leaves it in doubt, the request ends as a dead letter that names this step.
            return await ctx.once(key, lambda: refund(request.request_id, arguments["order"], order["cents"]))
        case name:
            return {"error": f"no tool is called {name}"}


def refund(request_id: str, order: str, cents: int) -> dict[str, Any]:
    """The side effect: a line in AGENT_REFUNDS, else in `refunds.jsonl`."""
    line = {"refunded": order, "cents": cents, "for": request_id}
    with Path(os.environ.get("AGENT_REFUNDS", "refunds.jsonl")).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return line


def _finish(body: dict[str, Any]) -> str | None:
    choices: list[dict[str, Any]] = body.get("choices") or [{}]
    return choices[0].get("finish_reason")


def _schema(name: str, description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS = [_schema("look_up", "What was ordered, and for how much."), _schema("refund", "Pays the whole price of an order back.")]
