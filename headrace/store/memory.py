"""The store without a Redis: the pure model of `claims` in a dict. For tests of what uses a store; the contract test is the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from headrace import claims
from headrace.claims import Answer, Claim, Copy, Held, Lifetimes, MarkState
from headrace.errors import StoreLost, StoreUnavailable


class MemoryStore:
    """Same interface as `store.Store`. `now_ms` is its server's time. `away` makes it unreachable; `lose()` empties it."""

    _epochs = itertools.count(1)

    def __init__(self, now_ms: Callable[[], int], lifetimes: Lifetimes | None = None) -> None:
        self._now_ms = now_ms
        self._lifetimes = lifetimes or Lifetimes()
        self._held: dict[str, tuple[Held, int]] = {}
        self._replays: dict[str, int] = {}
        self._pauses: dict[str, tuple[int, str]] = {}
        self._epoch: int | None = None
        self._known: int | None = None
        self.away = False
        self.server_ms = 0

    async def open(self) -> None:
        """Take the epoch, or make one."""
        self._reach()
        if self._epoch is None:
            self._epoch = next(self._epochs)
        self._known = self._epoch

    async def close(self) -> None:
        """Nothing to let go of."""

    async def check_server(self) -> None:
        """A dict evicts nothing."""

    def lose(self) -> None:
        """Lose all data, as a Redis restarted without its file."""
        self._held.clear()
        self._replays.clear()
        self._pauses.clear()
        self._epoch = None

    def held(self, request_id: str) -> Held | None:
        """What is held for a request id now."""
        found = self._held.get(request_id)
        return found[0] if found and found[1] > self._now_ms() else None

    async def claim(self, batch: Sequence[Claim]) -> list[Answer]:
        """One answer a claim, in order."""
        now = self._enter()
        answers: list[Answer] = []
        for claim in batch:
            registered = claim.replay_id is not None and self._replays.get(claim.replay_id, 0) > now
            answer, new = claims.decide(self.held(claim.request_id), claim, now, live_ms=self._lifetimes.live_ms, registered=registered)
            if new is not None:
                self._put(claim.request_id, new)
            answers.append(answer)
        return answers

    async def mark(self, batch: Sequence[tuple[Claim, MarkState]]) -> list[bool]:
        """Mark settled claims; False where a claim is another's by now."""
        now = self._enter()
        return [self._keep(c.request_id, claims.mark(self.held(c.request_id), c, state, now)) for c, state in batch]

    async def hand_over(self, batch: Sequence[tuple[Claim, bytes]]) -> list[bool]:
        """Leave outcomes for the positions' next owners."""
        now, live_ms = self._enter(), self._lifetimes.live_ms
        return [
            self._keep(c.request_id, claims.hand_over(self.held(c.request_id), c, payload, now, live_ms=live_ms)) for c, payload in batch
        ]

    async def renew(self, batch: Sequence[Claim]) -> list[bool]:
        """Keep claims alive."""
        now, live_ms = self._enter(), self._lifetimes.live_ms
        return [self._keep(c.request_id, claims.renew(self.held(c.request_id), c, now, live_ms=live_ms)) for c in batch]

    async def lapse(self, batch: Sequence[Claim]) -> list[bool]:
        """Let claims lapse now."""
        now = self._enter()
        return [self._keep(c.request_id, claims.renew(self.held(c.request_id), c, now, live_ms=0)) for c in batch]

    async def void(self, batch: Sequence[tuple[str, Copy]]) -> list[bool]:
        """Remove claims whose records are gone unresolved."""
        self._enter()
        return [self._keep(request_id, claims.void(self.held(request_id), copy)) for request_id, copy in batch]

    async def register_replay(self, replay_id: str, ttl_ms: int) -> None:
        """Make a replay id known."""
        self._replays[replay_id] = self._enter() + ttl_ms

    async def time_ms(self) -> int:
        """The server's time in epoch ms."""
        self._reach()
        self.server_ms = self._now_ms()
        return self.server_ms

    async def probe(self) -> None:
        """Raise StoreUnavailable while it is away."""
        self._reach()

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool:
        """Share a pause; True if nobody had it before."""
        now = self._enter()
        first = self._pauses.get(key, (0, ""))[0] <= now
        self._pauses[key] = (now + ttl_ms, text)
        return first

    async def pauses(self) -> dict[str, str]:
        """The pauses in force."""
        now = self._enter()
        return {key: text for key, (until, text) in self._pauses.items() if until > now}

    async def drop_pause(self, key: str) -> None:
        """End a pause early."""
        self._enter()
        self._pauses.pop(key, None)

    def _reach(self) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")

    def _enter(self) -> int:
        self._reach()
        if self._known is None or self._known != self._epoch:
            raise StoreLost("the store has another epoch")
        self.server_ms = self._now_ms()
        return self.server_ms

    def _put(self, request_id: str, held: Held) -> None:
        self._held[request_id] = (held, self._now_ms() + self._lifetimes.of(held.state))

    def _keep(self, request_id: str, result: tuple[bool, Held | None]) -> bool:
        """Hold what a transition left. A value that is unchanged keeps the end of its life."""
        done, new = result
        old = self._held.get(request_id)
        if new is None:
            self._held.pop(request_id, None)
        elif old is None or old[0].state != new.state:
            self._put(request_id, new)
        else:
            self._held[request_id] = (new, old[1])
        return done
