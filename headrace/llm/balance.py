"""Which endpoint of a provider is called next, and which are left out for a while because they keep failing. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from headrace.config import EjectionSettings, HealthSettings, ProviderSettings
from headrace.envelope import Response
from headrace.errors import ErrorClass, Failure
from headrace.instrument import Tell
from headrace.llm.endpoint import Endpoint

_UNREPLIED = frozenset({ErrorClass.CONNECTION, ErrorClass.TIMEOUT})
_REPLIED = frozenset({ErrorClass.SERVER_ERROR, ErrorClass.OVERLOADED})  # other classes of a 5xx are about the request
Usable = Callable[[Endpoint], bool]


class Balance:
    """The endpoints of one provider. Choosing is one pass over them; with a single one there is nothing to choose.

    Weighted: a smooth round (nginx's), each as often as its weight says and never in bursts. Least in flight: the one with the fewest
    calls for its weight.
    """

    def __init__(
        self, settings: ProviderSettings, endpoints: Sequence[Endpoint], *, tell: Tell, now_s: Callable[[], float] = monotonic
    ) -> None:
        self.endpoints = tuple(endpoints)
        self._now_s = now_s
        self._health = settings.health
        self._only = self.endpoints[0] if len(self.endpoints) == 1 else None
        self.single = self._only is not None  # nothing to choose, and nobody to be left out
        self._ejection = settings.ejection
        self._most_out = most_out(settings.ejection, len(self.endpoints))
        self._by_load = settings.balance == "least_in_flight"
        self._tell = tell
        self._turn = 0

    @property
    def health(self) -> HealthSettings | None:
        """How its endpoints are asked whether they work, if they are."""
        return self._health

    def pick(self, usable: Usable | None = None) -> Endpoint | None:
        """The endpoint for the next call among those that work; None where none of the `usable` ones does."""
        if self._only is not None:
            return self._only if not self._only.down and (usable is None or usable(self._only)) else None
        now_s = self._now_s()
        able = [one for one in self.endpoints if _works(one, now_s) and (usable is None or usable(one))]
        return self._chosen(able) if able else None

    def any(self, usable: Usable | None = None) -> Endpoint | None:
        """As `pick`, where none works: the call finds out whether that is still so."""
        able = [one for one in self.endpoints if usable is None or usable(one)]
        return self._chosen(able) if able else None

    def begins(self, one: Endpoint) -> None:
        """A call to it goes out. The first after its time out is the probe; until that has ended, nobody else calls it."""
        if one.left_out and self._now_s() >= one.out_until_s:
            one.probing = True

    def ended(self, one: Endpoint, end: Response | Failure | None, *, whole: bool = True) -> None:
        """The call has ended, or was cancelled (None). Failures count that are the endpoint's: connection, time-out, 5xx; never 4xx.

        Not `whole`: it had less time than the endpoint may take, and its time-out says nothing.
        """
        if end is None or (not whole and isinstance(end, Failure) and end.error_class is ErrorClass.TIMEOUT):
            one.probing = False
        elif isinstance(end, Failure) and failing(end):
            one.failures += 1
            if one.probing or (one.failures >= self._ejection.failures and not one.left_out and self._has_room()):
                self._leave_out(one, end.error_class.value)
        else:
            one.failures = 0
            if one.probing:
                self._return(one)

    def checked(self, one: Endpoint, *, well: bool, why: str = "") -> None:
        """What its health check found."""
        if one.down == (not well):
            return
        one.down = not well
        name = {"provider": one.provider, "endpoint": one.label}
        if one.down:
            self._tell("endpoint_ejected", {**name, "why": "health", "error": why})
        else:
            self._tell("endpoint_returned", {**name, "why": "health"})

    def _chosen(self, able: list[Endpoint]) -> Endpoint:
        if len(able) == 1:
            return able[0]
        self._turn = (self._turn + 1) % len(able)
        return _least(able, self._turn) if self._by_load else _weighted(able)

    def _has_room(self) -> bool:
        return sum(one.left_out for one in self.endpoints) < self._most_out

    def _leave_out(self, one: Endpoint, why: str) -> None:
        settings, now_s = self._ejection, self._now_s()
        lately = one.left_out or now_s - one.returned_at_s < one.length_s
        one.length_s = min(settings.cap_s, one.length_s * 2 if one.length_s and lately else settings.for_s)
        one.left_out, one.probing, one.why = True, False, why
        one.out_until_s = now_s + one.length_s
        self._tell(
            "endpoint_ejected",
            {"provider": one.provider, "endpoint": one.label, "why": why, "failures": one.failures, "for_s": one.length_s},
        )

    def _return(self, one: Endpoint) -> None:
        self._tell("endpoint_returned", {"provider": one.provider, "endpoint": one.label, "why": one.why})
        one.left_out, one.probing, one.why = False, False, None
        one.returned_at_s = self._now_s()


def most_out(settings: EjectionSettings, endpoints: int) -> int:
    """How many may be left out at once; never all of them."""
    return min(int(settings.most_share * endpoints), endpoints - 1)


def failing(failure: Failure) -> bool:
    """Whether a failure says that the endpoint itself does not work. An answer that cannot be used says nothing of it."""
    if failure.error_class in _REPLIED:
        return failure.status_code is not None and failure.status_code >= 500
    return failure.error_class in _UNREPLIED and failure.called


def _works(one: Endpoint, now_s: float) -> bool:
    return not one.down and (not one.left_out or (now_s >= one.out_until_s and not one.probing))


def _weighted(able: list[Endpoint]) -> Endpoint:
    best, total = able[0], 0.0
    for one in able:
        total += one.server.weight
        one.current += one.server.weight
        if one.current > best.current:
            best = one
    best.current -= total
    return best


def _least(able: list[Endpoint], turn: int) -> Endpoint:
    best = able[turn]  # among equals each has its turn
    load = (best.in_flight + 1) / best.server.weight
    for one in able:
        if (here := (one.in_flight + 1) / one.server.weight) < load:
            best, load = one, here
    return best
