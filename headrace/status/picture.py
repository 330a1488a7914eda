"""What is known of the fleet at one moment, and what of it is worth a warning. Pure; who could not be asked is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.controls.entry import Entry
from headrace.dlq.console import iso
from headrace.pauses import Pause
from headrace.plural import counted
from headrace.roster import Member
from headrace.vitals import EndpointSample

MANY = 0.8  # of the cap on parked records
READERS = {"main": "main", "retry": "retry", "wheels": "retry", "dlq": "dlq"}  # the wheels turn in the retry lane's process


@dataclass(frozen=True, slots=True)
class Lag:
    """Of one lane: `lag` is what is not settled, transaction markers included; `lost` fell out of the log before it was.

    `near_retention` are partitions whose oldest unsettled record is older than 80 % of what the topic keeps.
    """

    lane: str
    topic: str
    lag: int
    lost: int = 0
    near_retention: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters in the topic, by class; `open` are those that no replay has answered or taken up. None: Redis could not be asked.

    Without `whole` there are more than were counted in the time there is. Without a `total` a worker that follows them has said what is open.
    """

    total: int | None
    open: int | None
    by_class: Mapping[str, int]
    oldest_ms: int | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider's endpoint, fleet-wide: calls under way, how many `workers` call it, and how many leave it out, by why."""

    provider: str
    endpoint: str
    in_flight: int
    workers: int
    out: Mapping[str, int]
    unhealthy: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What Redis says of itself. `closed_since_ms`: no request is admitted since then, because what it lost is being restored."""

    epoch: str | None
    closed_since_ms: int | None
    beat_ms: int | None


@dataclass(frozen=True, slots=True)
class Picture:
    """`now_ms` is Redis' time, or without it this machine's. `away` names what could not be asked, with the reason."""

    namespace: str
    now_ms: int
    lags: tuple[Lag, ...] = ()
    letters: Letters | None = None
    held: Held | None = None
    members: tuple[Member, ...] = ()
    pauses: tuple[Pause, ...] = ()
    orders: tuple[Entry, ...] = ()
    parked_cap: int = 0
    away: Mapping[str, str] = field(default_factory=dict)

    @property
    def parked(self) -> int:
        """What waits for a retry."""
        return sum(lag.lag for lag in self.lags if lag.lane in ("retry", "wheels"))

    def live(self) -> list[Member]:
        """Who has said something lately."""
        return [member for member in self.members if not member.silent(self.now_ms)]

    def in_flight(self, lane: str) -> int:
        """Calls under way in a lane, fleet-wide."""
        return sum(int(member.lanes[lane].get("in_flight", 0)) for member in self.live() if lane in member.lanes)

    def endpoints(self) -> list[Endpoint]:
        """Whom the fleet calls; each worker judges an endpoint by its own calls."""
        said: dict[tuple[str, str], list[EndpointSample]] = {}
        for one in (one for member in self.live() for one in member.endpoints):
            said.setdefault((one.provider, one.address), []).append(one)
        return [
            Endpoint(
                *named,
                in_flight=sum(one.in_flight for one in ones),
                workers=len(ones),
                out=dict(Counter(one.out for one in ones if one.out is not None)),
                unhealthy=sum(one.healthy is False for one in ones),
            )
            for named, ones in sorted(said.items())
        ]

    def counted(self) -> Letters | None:
        """The open dead letters as a worker that follows them said last; None: nobody did."""
        told = [member for member in self.live() if member.letters is not None]
        newest = max(told, key=lambda member: member.at_ms, default=None)
        if newest is None or (letters := newest.letters) is None:
            return None
        by_class = dict(Counter(letters.open).most_common())
        return Letters(None, sum(by_class.values()), by_class, letters.oldest_ms, whole=not letters.untracked)

    def workers(self, lane: str) -> int:
        """How many processes run a lane."""
        return sum(READERS.get(lane, lane) in member.lanes for member in self.live())


def warnings(picture: Picture) -> Iterator[str]:
    """What someone should look at, the gravest first."""
    yield from (f"{what} cannot be asked: {why}" for what, why in picture.away.items())
    for lag in picture.lags:
        if lag.lost:
            yield f"{lag.lane}: {counted(lag.lost, 'record')} fell out of {lag.topic} before being settled; raise its retention"
        if lag.near_retention:
            partitions = ", ".join(map(str, lag.near_retention))
            yield f"{lag.lane}: partition {partitions} of {lag.topic} is near the end of its retention; raise it, or add workers"
    if "redis" not in picture.away:
        yield from _of_redis(picture)
    if picture.parked_cap and picture.parked >= MANY * picture.parked_cap:
        yield f"{picture.parked:,} records wait for a retry; main stops reading at {picture.parked_cap:,} (limits.parked_records)"


def _of_redis(picture: Picture) -> Iterator[str]:
    if picture.held is not None and picture.held.closed_since_ms is not None:
        since_s = (picture.now_ms - picture.held.closed_since_ms) // 1000
        yield f"admission has been closed for {since_s:,} s: what Redis lost is being restored from the results"
    yield from _paused(picture)
    for lag in picture.lags:
        if lag.lag and not picture.workers(lag.lane):
            yield f"{lag.lane}: {lag.lag:,} wait{'s' if lag.lag == 1 else ''}, and no worker says that it reads {'it' if lag.lag == 1 else 'them'}"
    for one in picture.endpoints():
        if one.out:
            yield f"{one.endpoint} of {one.provider} is left out by {sum(one.out.values())} of {one.workers} workers: {', '.join(one.out)}"
    for member in picture.members:
        if member.silent(picture.now_ms):
            silent_s = (picture.now_ms - member.at_ms) // 1000
            yield f"worker {member.instance or member.incarnation} on {member.host} has said nothing for {silent_s:,} s"
    yield from _lost(picture)


def _paused(picture: Picture) -> Iterator[str]:
    """What holds a provider: an order that names no request, or what failures have shut; of shut models a line a key."""
    for order in picture.orders:
        if order.kind == "pause" and not order.scope.of_requests:
            until = "it is resumed" if order.until_ms is None else f"{iso(order.until_ms)[:19]}Z"
            yield f"{order.scope} is paused until {until}, by {order.who}: {order.why}"
    models: dict[tuple[str, str], list[Pause]] = {}
    for pause in picture.pauses:
        scope = pause.scope
        if scope.model is None:
            yield f"provider {scope.provider}, key {scope.key_id}, is {_shut(pause)}"
        else:
            models.setdefault((scope.provider, scope.key_id), []).append(pause)
    for (provider, key_id), shut in models.items():
        about = f"model {shut[0].scope.model} is" if len(shut) == 1 else f"{len(shut):,} models are"
        yield f"provider {provider}, key {key_id}: {about} {_shut(max(shut, key=lambda one: one.until_ms))}"


def _shut(pause: Pause) -> str:
    why = " ".join(dict.fromkeys(filter(None, (pause.error_class, pause.code)))) or "quota or credentials"
    return f"shut until {iso(pause.until_ms)[:19]}Z, then a probe: {why}"


def _lost(picture: Picture) -> Iterator[str]:
    for order in picture.orders:
        if order.kind == "ids" and not order.left:
            yield f"of the ids that {order.who} cancelled ({order.why}) Redis has lost all: cancel them again"
