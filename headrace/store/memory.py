"""The store without a Redis: the pure model of `claims` in a dict. For tests of what uses a store; the contract test is the same."""

from __future__ import annotations

import copy as copying
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace import claims
from headrace.claims import Answer, Claim, Copy, DoneMark, Held, Lifetimes, MarkState
from headrace.errors import StoreLost, StoreUnavailable
from headrace.once import Kept
from headrace.store.epochs import LEASE_MS, Closed, Entered
from headrace.store.memory_orders import MemoryOrders, Shelf
from headrace.store.memory_steps import MemorySteps


@dataclass(slots=True)
class _Data:
    """What a server holds; `run` is the process behind it."""

    run: int
    held: dict[str, tuple[Held, int]] = field(default_factory=dict)
    replays: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, tuple[int, str]] = field(default_factory=dict)
    steps: dict[str, tuple[dict[str, Kept], int]] = field(default_factory=dict)
    orders: Shelf = field(default_factory=Shelf)
    epoch: int | None = None
    began_ms: int = 0
    beat_ms: int | None = None
    beat_run: int | None = None
    closed: Closed | None = None
    lease: tuple[str, int] = ("", 0)


class MemoryServer:
    """What several stores share: `lose` empties it, `snapshot` and `roll_back` are a restart from an old file. `away`: unreachable."""

    _runs = itertools.count(1)

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.away = False
        self.data = _Data(next(self._runs))

    def lose(self) -> None:
        """Started again, empty."""
        self.data = _Data(next(self._runs))

    def flush(self) -> None:
        """Emptied alive."""
        self.data = _Data(self.data.run)

    def snapshot(self) -> _Data:
        """What a file would hold."""
        return copying.deepcopy(self.data)

    def roll_back(self, snapshot: _Data) -> None:
        """Started again from that file."""
        self.data = copying.deepcopy(snapshot)
        self.data.run = next(self._runs)


class MemoryStore:
    """Same interface as `store.Store`. `now_ms` is its server's time; several stores may share a `server`."""

    def __init__(self, now_ms: Callable[[], int], lifetimes: Lifetimes | None = None, server: MemoryServer | None = None) -> None:
        self.server = server or MemoryServer(now_ms)
        self._lifetimes = lifetimes or Lifetimes()
        self.epochs = _MemoryEpochs(self.server)
        self.steps = MemorySteps(self, lambda: self.server.data.steps, self._lifetimes.of("done"))
        self.orders = MemoryOrders(self, lambda: self.server.data.orders)
        self.server_ms = 0

    async def open(self) -> None:
        """Make sure the server answers."""
        await self.time_ms()

    async def close(self) -> None:
        """Nothing to let go of."""

    async def check_server(self) -> None:
        """A dict evicts nothing."""

    def held(self, request_id: str) -> Held | None:
        """What is held for a request id now."""
        found = self.server.data.held.get(request_id)
        return found[0] if found and found[1] > self.server.now_ms() else None

    def state_of(self, request_id: str) -> str | None:
        """The first letter of what Redis would keep."""
        held = self.held(request_id)
        return None if held is None else {"done": "s"}.get(held.state, held.state[0])

    def admitted_ms(self) -> int:
        """Its server's time. Raises StoreLost while admission is closed."""
        now = self._enter()
        if self.server.data.closed is not None:
            raise StoreLost("admission is closed")
        return now

    async def claim(self, batch: Sequence[Claim]) -> list[Answer]:
        """One answer a claim, in order."""
        now, data = self.admitted_ms(), self.server.data
        answers: list[Answer] = []
        for claim in batch:
            registered = claim.replay_id is not None and data.replays.get(claim.replay_id, 0) > now
            answer, new = claims.decide(self.held(claim.request_id), claim, now, live_ms=self._lifetimes.live_ms, registered=registered)
            if new is not None:
                self._put(claim.request_id, new)
            answers.append(answer)
        return answers

    async def reassert(self, batch: Sequence[Claim]) -> list[Answer]:
        """Claim again, under a new epoch, what is held."""
        now, live_ms, answers = self._enter(), self._lifetimes.live_ms, []
        for claim in batch:
            answer, new = claims.reassert(self.held(claim.request_id), claim, now, live_ms=live_ms, began_ms=self.server.data.began_ms)
            if new is not None:
                self._put(claim.request_id, new)
            answers.append(answer)
        return answers

    async def restore(self, batch: Sequence[DoneMark]) -> list[bool]:
        """Write the marks of completed results again."""
        now = self._enter()
        flags = []
        for done in batch:
            missing, new = claims.restore(self.held(done.request_id), done._replace(at_ms=min(done.at_ms, now)))
            if missing and new is not None:
                self.server.data.held[done.request_id] = (new, new.since_ms + self._lifetimes.of("done"))
            flags.append(missing)
        return flags

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
        self.server.data.replays[replay_id] = await self.time_ms() + ttl_ms

    async def time_ms(self) -> int:
        """The server's time in epoch ms."""
        if self.server.away:
            raise StoreUnavailable("the store is away")
        self.server_ms = self.server.now_ms()
        return self.server_ms

    async def probe(self) -> None:
        """Raise StoreUnavailable while it is away."""
        await self.time_ms()

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool:
        """Share a pause; True if nobody had it before."""
        now, pauses = self._enter(), self.server.data.pauses
        first = pauses.get(key, (0, ""))[0] <= now
        pauses[key] = (now + ttl_ms, text)
        return first

    async def pauses(self) -> dict[str, str]:
        """The pauses in force."""
        now = await self.time_ms()
        return {key: text for key, (until, text) in self.server.data.pauses.items() if until > now}

    async def drop_pause(self, key: str) -> None:
        """End a pause early."""
        self.server.data.pauses.pop(key, None)

    def _enter(self) -> int:
        self.server_ms = self.epochs.check()
        return self.server_ms

    def _put(self, request_id: str, held: Held) -> None:
        self.server.data.held[request_id] = (held, self.server.now_ms() + self._lifetimes.of(held.state))

    def _keep(self, request_id: str, result: tuple[bool, Held | None]) -> bool:
        """Hold what a transition left. A value that is unchanged keeps the end of its life."""
        done, new = result
        old = self.server.data.held.get(request_id)
        if new is None:
            self.server.data.held.pop(request_id, None)
        elif old is None or old[0].state != new.state:
            self._put(request_id, new)
        else:
            self.server.data.held[request_id] = (new, old[1])
        return done


class _MemoryEpochs:
    """As `epochs.Epochs`, over a MemoryServer. A store's connection is made anew whenever the server's run changes."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._known: int | None = None
        self._run: int | None = None
        self._beat_ms = 0

    def check(self) -> int:
        """What stands before every script: now. Raises StoreUnavailable or StoreLost."""
        if self._server.away:
            raise StoreUnavailable("the store is away")
        data = self._server.data
        if data.epoch is None or data.epoch != self._known or data.run != self._run:
            raise StoreLost("the store has another epoch, or is another")
        return self._server.now_ms()

    async def enter(self) -> Entered:
        """Take the epoch that stands, or write a new one."""
        if self._server.away:
            raise StoreUnavailable("the store is away")
        data, now, known = self._server.data, self._server.now_ms(), self._known or 0
        self._run = data.run
        went_back = (data.epoch or 0) < known or (data.epoch == self._known and (data.beat_ms or 0) < self._beat_ms)
        loss = data.epoch is None or went_back or data.beat_run != data.run
        if loss:
            from_ms = max(0, (data.beat_ms or 0) - 60_000)
            if data.closed is not None:
                from_ms = min(from_ms, data.closed.from_ms)
            data.epoch, data.began_ms = max(data.epoch or 0, known, now - 1) + 1, now
            data.closed, data.beat_ms, data.beat_run = Closed(from_ms, now), now, data.run
        fresh = data.epoch != self._known
        self._known, self._beat_ms = data.epoch, 0 if fresh else self._beat_ms
        return Entered(loss=loss, fresh=fresh, closed=data.closed)

    async def beat(self) -> None:
        """Say that these data were in use now."""
        now, data = self.check(), self._server.data
        if (data.beat_ms or -1) < self._beat_ms:
            raise StoreLost("an older beat")
        data.beat_ms = self._beat_ms = max(data.beat_ms or 0, now)

    async def lease(self, who: str) -> Closed | None:
        """Who restores."""
        now, data = self.check(), self._server.data
        if data.closed is None:
            return None
        if data.lease[1] <= now or data.lease[0] == who:
            data.lease = (who, now + LEASE_MS)
        return replace(data.closed, mine=data.lease[0] == who, for_ms=now - data.closed.since_ms)

    async def reopen(self, who: str) -> bool:
        """Open admission, if this worker restores."""
        now, data = self.check(), self._server.data
        if data.closed is None:
            return True
        if data.lease[0] != who or data.lease[1] <= now:
            return False
        data.closed, data.lease = None, ("", 0)
        return True
