"""An embeddings job: one request brings many texts, their vectors go to a store of one's own, the result says where.

Vectors are large, and an upsert may be repeated: so there is no `ctx.once` here. What is stored is asked first, and a crash costs
no more than the batches in flight.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
from contextlib import closing
from typing import Any

from headrace import Context, Dead, Request, Response

BATCH, AT_ONCE = 64, 4


async def handle(request: Request, ctx: Context) -> Response:
    """Embed what is not stored yet, a few batches at once."""
    texts = texts_of(request)
    missing = await asyncio.to_thread(not_stored, texts)
    gate = asyncio.Semaphore(AT_ONCE)

    async def embed(batch: list[str]) -> None:
        async with gate:
            answer = await ctx.llm.embed(batch)
        await asyncio.to_thread(store, dict(zip(batch, answer.vectors, strict=True)))

    batches = [missing[begin : begin + BATCH] for begin in range(0, len(missing), BATCH)]
    # All are waited for, also where one fails: what another has paid for is to be stored.
    ends = await asyncio.gather(*map(embed, batches), return_exceptions=True)
    if failed := next((end for end in ends if end is not None), None):
        raise failed
    ctx.log.info("embedded", texts=len(texts), new=len(missing))
    return Response({"stored": len(set(texts)), "new": len(missing), "in": path()})


def texts_of(request: Request) -> list[str]:
    """The request's `input`: a text, or a list of texts."""
    given = request.body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise Dead("input must be a text, or a list of texts", code="no_texts")
    return texts


def not_stored(texts: list[str]) -> list[str]:
    """Those without a vector, each once."""
    with closing(_open()) as db:
        known = {text for text in set(texts) if db.execute("SELECT 1 FROM vectors WHERE id = ?", (_id(text),)).fetchone()}
    return [text for text in dict.fromkeys(texts) if text not in known]


def store(vectors: dict[str, Any]) -> None:
    """Write vectors under the hash of their texts: a second time changes nothing."""
    with closing(_open()) as db, db:
        db.executemany(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?)", [(_id(text), json.dumps(vector)) for text, vector in vectors.items()]
        )


def path() -> str:
    """The store: EMBEDDINGS_DB, else `vectors.sqlite` in the current folder."""
    return os.environ.get("EMBEDDINGS_DB", "vectors.sqlite")


def _open() -> sqlite3.Connection:
    db = sqlite3.connect(path(), timeout=10)
    db.execute("CREATE TABLE IF NOT EXISTS vectors (id TEXT PRIMARY KEY, vector TEXT)")
    return db


def _id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
