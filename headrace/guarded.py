"""The client a handler gets: each call goes to the first link of its model's chain that is open, and pauses hear how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.clock import Clock
from headrace.config import Settings
from headrace.envelope import Attempt, Request, Response
from headrace.errors import CallFailed, ErrorClass, Failure, HeadraceError
from headrace.llm import Llm, Route, Spot, Target, remaining
from headrace.pauses import Pauses

SHUTS = (ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH)
REFUSED = 32  # by quota or key, in one call: more keys than that are not tried one after another
REMEMBERED = 63  # failed calls of one attempt before the last: a handler may go on for as long as it likes
STAYING: frozenset[str] = frozenset()


class TargetShut(HeadraceError):
    """Every target of the call is paused: nothing was sent. `until_ms` is the first reopening, epoch ms."""

    def __init__(self, until_ms: int) -> None:
        super().__init__("the target is paused")
        self.until_ms = until_ms


class Ended(NamedTuple):
    """How a call failed: whether its chain has a further link, and when a target of it reopens, if all are shut."""

    failure: Failure
    goes_on: bool
    reopens_ms: int | None


class GuardedLlm:
    """Of one attempt. `attempts` are those of the request's trail: a link it has left is not called again.

    `staying` are the error classes that do not let a request go on to another link while they keep one shut.
    """

    __slots__ = ("_attempt", "_attempts", "_clock", "_ended", "_llm", "_pauses", "_staying", "_timeout_s")

    def __init__(
        self,
        llm: Llm,
        pauses: Pauses,
        clock: Clock,
        attempt: int,
        timeout_s: float,
        attempts: Sequence[Attempt] = (),
        *,
        staying: frozenset[str] = STAYING,
    ) -> None:
        self._llm = llm
        self._pauses = pauses
        self._clock = clock
        self._attempt = attempt
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._staying = staying
        self._ended: tuple[Ended, ...] = ()

    def ended(self, failure: Failure) -> Ended | None:
        """How the call that failed so ended; None for what no call of this attempt has told. A handler may make several at once."""
        return next((one for one in self._ended if one.failure is failure), None)

    async def call(self, request: Request) -> Response:
        """One call. What a quota or a key refuses costs nothing: the next open target is asked, within the same time. Raises CallFailed, TargetShut."""
        routes: Sequence[Route] = self._llm.routes(request)
        if self._attempts:
            routes = remaining(routes, self._attempts)
        now_ms = self._clock.now_ms()
        spot = self._spot(routes, now_ms)
        if spot is None:
            raise TargetShut(self._reopens_ms(routes, now_ms) or now_ms)
        try:
            return await self._send(spot, request, now_ms, self._timeout_s)
        except CallFailed as error:
            if error.failure.error_class not in SHUTS:
                self._note(Ended(error.failure, len(routes) > 1, None))
                raise
            return await self._elsewhere(spot, routes, request, error, now_ms)

    async def _elsewhere(self, spot: Spot, routes: Sequence[Route], request: Request, error: CallFailed, began_ms: int) -> Response:
        """After a refusal by quota or key, of a call that began at `began_ms`."""
        for _ in range(REFUSED):
            rekeyed = await self._rekeyed(spot, error.failure)
            now_ms = self._clock.now_ms()
            if not rekeyed:
                self._pauses.shut(spot.target, error.failure, now_ms)
            left_s = self._timeout_s - (now_ms - began_ms) / 1000
            found = self._spot(routes, now_ms) if left_s > 0 else None  # who has a spot has its probe, and must call
            if found is None:
                break
            spot = found
            try:
                return await self._send(spot, request, now_ms, left_s)
            except CallFailed as again:
                error = again
                if again.failure.error_class not in SHUTS:
                    self._note(Ended(again.failure, len(routes) > 1, None))
                    raise
        self._note(Ended(error.failure, goes_on=False, reopens_ms=self._reopens_ms(routes, self._clock.now_ms())))
        raise error

    def _note(self, ended: Ended) -> None:
        self._ended = (*self._ended[-REMEMBERED:], ended)

    async def _rekeyed(self, spot: Spot, failure: Failure) -> bool:
        """Whether the key that was refused is another by now: it was rotated, and nothing is wrong."""
        if failure.error_class is not ErrorClass.AUTH:
            return False
        if spot.endpoint.key.key_id == spot.target.key_id:
            await self._llm.keys.look()
        return spot.endpoint.key.key_id != spot.target.key_id

    async def _send(self, spot: Spot, request: Request, now_ms: int, timeout_s: float) -> Response:
        target, pauses = spot.target, self._pauses
        try:
            response = await self._llm.send(spot, request, attempt=self._attempt, timeout_s=timeout_s)
        except BaseException:
            # A refusal too: `shut` comes later, and after a rotated key or a cancellation never.
            pauses.abandoned(target, now_ms)
            raise
        pauses.succeeded(target, now_ms)
        return response

    def _spot(self, routes: Sequence[Route], now_ms: int) -> Spot | None:
        """Where this call goes; whoever gets it has the probe of what was shut, and must report back."""
        pauses = self._pauses
        if pauses.quiet:
            return self._llm.pick(routes)
        reachable = list(self._reachable(routes, now_ms)) if self._staying else routes
        spot = self._llm.pick(reachable, lambda target: pauses.shut_until(target, now_ms) is None)
        return spot if spot is not None and pauses.may_call(spot.target, now_ms) else None

    def _reachable(self, routes: Sequence[Route], now_ms: int) -> Iterator[Route]:
        """Up to the first link that is shut for a reason that lets nothing pass it by."""
        for route in routes:
            yield route
            if all(self._pauses.why_shut(target, now_ms) in self._staying for target in self._llm.targets_of(route)):
                return

    def _reopens_ms(self, routes: Sequence[Route], now_ms: int) -> int | None:
        targets: Iterator[Target] = (target for route in routes for target in self._llm.targets_of(route))
        return min((until for target in targets if (until := self._pauses.shut_until(target, now_ms)) is not None), default=None)


def staying_classes(settings: Settings) -> frozenset[str]:
    """The classes that keep requests at a shut link: those whose `fallback` is `never`."""
    return frozenset(one.value for one in SHUTS if settings.policy_of(one).fallback == "never")
