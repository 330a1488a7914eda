"""A model's client with one target, whose calls end as a test says: what an attempt is made with, without a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from headrace.envelope import Request, Response
from headrace.llm import Route, Spot, Target

TARGET = Target("openai", "m", "k1")


class OneTarget:
    """Subclasses say how a call ends."""

    def __init__(self) -> None:
        self.keys = SimpleNamespace(look=self._look)

    def routes(self, request: Request) -> tuple[Route, ...]:
        return (Route(TARGET.provider, TARGET.model),)

    def targets_of(self, route: Route) -> Iterator[Target]:
        return iter((TARGET,))

    def pick(self, routes: Sequence[Route], is_open: Callable[[Target], bool] | None = None) -> Spot | None:
        endpoint: Any = SimpleNamespace(key=SimpleNamespace(key_id=TARGET.key_id))
        return Spot(endpoint, TARGET) if is_open is None or is_open(TARGET) else None

    async def send(self, spot: Spot, request: Request, *, attempt: int, timeout_s: float) -> Response:
        return await self.call(request, attempt=attempt, timeout_s=timeout_s)

    async def call(self, request: Request, *, attempt: int, timeout_s: float) -> Response:
        raise NotImplementedError

    async def _look(self) -> None:
        """Keys are in no file."""
