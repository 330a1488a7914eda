"""The answers of a provider in good health: bodies of each endpoint, their text a pure function of the prompt."""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Final

from headrace.local.stub.call import Call

_WORDS: Final = (
    "water",
    "wheel",
    "stone",
    "mill",
    "grain",
    "flour",
    "river",
    "stream",
    "gate",
    "sluice",
    "weir",
    "channel",
    "axle",
    "gear",
    "timber",
    "iron",
    "morning",
    "evening",
    "slow",
    "steady",
    "clear",
    "bright",
    "heavy",
    "light",
    "turns",
    "flows",
    "carries",
    "grinds",
    "holds",
    "opens",
    "waits",
    "rests",
)


@dataclass(slots=True)
class Answer:
    """A body still open to change, and what it costs. `created_s` in it is epoch seconds."""

    document: dict[str, object]
    tokens: int


def answer_text(prompt: str) -> tuple[str, int]:
    """The text this server answers to `prompt`, and its tokens: one a word."""
    digest = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    words = [_WORDS[byte & 31] for byte in digest[: 12 + (digest[0] & 15)]]
    return f"{digest[:4].hex()} {' '.join(words)}.", len(words) + 1


def make_answer(call: Call, number: str, created_s: int, answer_bytes: int | None = None) -> Answer:
    """The answer to `call`; `number` makes its id unique. `answer_bytes` stretches the text to that length."""
    if call.endpoint == "embeddings":
        return _embeddings(call)
    text, tokens = answer_text(call.prompt)
    cut = call.max_tokens is not None and tokens > call.max_tokens
    if cut and call.max_tokens is not None:
        text, tokens = " ".join(text.split(" ")[: call.max_tokens]), call.max_tokens
    if answer_bytes is not None:
        text = (text + " ") * (answer_bytes // (len(text) + 1) + 1)
        text, tokens = text[:answer_bytes], answer_bytes // 4 + 1
    if call.endpoint == "responses":
        return _response(call, number, created_s, text, tokens, cut=cut)
    return _completion(call, number, created_s, text, tokens, "length" if cut else "stop")


def _completion(call: Call, number: str, created_s: int, text: str, tokens: int, finish: str) -> Answer:
    chat = call.endpoint == "chat"
    said: dict[str, object] = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
    choices = [{"index": n, **said, "logprobs": None, "finish_reason": finish} for n in range(call.choices)]
    tokens *= call.choices
    return Answer(
        {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created_s,
            "model": call.model,
            "choices": choices,
            "usage": {
                "prompt_tokens": call.prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": call.prompt_tokens + tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            "system_fingerprint": "fp_stub",
        },
        tokens,
    )


def _response(call: Call, number: str, created_s: int, text: str, tokens: int, *, cut: bool) -> Answer:
    status = "incomplete" if cut else "completed"
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": f"msg_{number}", "status": status, "role": "assistant", "content": [part]}
    return Answer(
        {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": created_s,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": call.model,
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": call.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": call.prompt_tokens + tokens,
            },
        },
        tokens,
    )


def _embeddings(call: Call) -> Answer:
    data = [{"object": "embedding", "index": n, "embedding": _vector(t, call)} for n, t in enumerate(call.inputs)]
    usage = {"prompt_tokens": call.prompt_tokens, "total_tokens": call.prompt_tokens}
    return Answer({"object": "list", "data": data, "model": call.model, "usage": usage}, call.prompt_tokens)


def _vector(text: str, call: Call) -> list[float] | str:
    raw = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(call.dimensions)
    norm = math.sqrt(sum((byte - 127.5) ** 2 for byte in raw))
    vector = [(byte - 127.5) / norm for byte in raw]
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if call.base64 else vector
