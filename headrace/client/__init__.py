"""For a service that wants its answers: submit a request, await its result. `AsyncClient` in an event loop, `Client` everywhere else.

Named as httpx and openai name theirs: the plain name blocks, `Async…` awaits.
"""

from headrace.client.aio import AsyncClient
from headrace.client.blocking import Client

__all__ = ["AsyncClient", "Client"]
