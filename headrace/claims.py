"""The life of a claim: who may handle a request id, as pure decisions over what Redis holds (DESIGN §5, "Redis").

The Lua scripts beside `store` decide the same; one contract test holds both to this. Time is always passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headrace.envelope import Position
from headrace.outcome import DuplicateOf

State = Literal["claimed", "answered", "waiting", "dead", "done"]
MarkState = Literal["waiting", "dead", "done", "forget"]
_DAY_MS = 86_400_000
FOR_EVER_MS = 3_650 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long Redis keeps what, in ms. `live_ms` is how long a claim counts as alive without a renewal.

    A claim and `done` live as long as the results (main's retention + dlq's); `waiting` as the longest delay +
    retry's retention.
    """

    claim_ms: int = 14 * _DAY_MS
    waiting_ms: int = 8 * _DAY_MS
    dead_ms: int = _DAY_MS
    live_ms: int = 15_000

    @classmethod
    def within(cls, *, results_ms: int, retry_ms: int, longest_delay_ms: int) -> Lifetimes:
        """For topics with these retentions (-1: for ever): a mark must live as long as a copy of its request can turn up."""
        claim_ms = results_ms if results_ms > 0 else FOR_EVER_MS
        waiting_ms = longest_delay_ms + retry_ms if retry_ms > 0 else FOR_EVER_MS
        return cls(claim_ms=claim_ms, waiting_ms=waiting_ms)

    def of(self, state: State) -> int:
        """The time to live of a value in `state`, in ms."""
        return {"waiting": self.waiting_ms, "dead": self.dead_ms}.get(state, self.claim_ms)


class Token(NamedTuple):
    """Fencing token: a process's random incarnation and its assignment epoch of the record's partition."""

    incarnation: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """The token in `text`. Raises ValueError for anything else."""
        incarnation, epoch = text.rsplit("/", 1)
        return cls(incarnation, int(epoch))

    def newer_than(self, other: Token) -> bool:
        """Epochs are comparable only inside one process; between processes the group has fenced the older owner."""
        return self.incarnation != other.incarnation or self.epoch > other.epoch


RESTORED = Token("restored", 0)


class DoneMark(NamedTuple):
    """A completed result, as `llm_results` tells of it after Redis has lost its own word. `at_ms`: when it was appended."""

    request_id: str
    origin: Position
    fingerprint: str
    at_ms: int


class Claim(NamedTuple):
    """What a record brings when it asks for its request id.

    `replay_id` is looked up where the claim is decided. An unknown one is refused if `strict` (main), else it is
    merely no replay (retry, whose writers are trusted).
    """

    request_id: str
    position: Position
    origin: Position
    hop: int
    token: Token
    fingerprint: str
    replay_id: str | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """What Redis holds for a request id. `live_until_ms` counts only while it is claimed."""

    state: State
    position: Position
    origin: Position
    hop: int
    token: Token
    fingerprint: str
    live_until_ms: int
    since_ms: int
    answer: bytes = b""

    def alive(self, now_ms: int) -> bool:
        return self.live_until_ms > now_ms

    def belongs_to(self, claim: Claim) -> bool:
        """Whether it is this very claim's, token included."""
        return (self.position, self.origin, self.hop, self.token, self.fingerprint) == (
            claim.position, claim.origin, claim.hop, claim.token, claim.fingerprint)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Granted:
    """The record may be handled. `taken_over`: from a claim that was there before."""

    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """An earlier owner of this position left its outcome: settle it without a call."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """This very position is still alive under another token: wait until it is answered or lapses."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Another record holds the id; only the committed offset of its position tells whether it is settled."""

    position: Position
    token: Token
    alive: bool
    since_ms: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The id is settled already, or on its way."""

    of: DuplicateOf
    since_ms: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The id is known with another content."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is held was written by a version this one does not know: nothing is written over it, and nothing is concluded from it."""


@dataclass(frozen=True, slots=True)
class UnknownReplay:
    """The record names a replay nobody registered."""


Answer = Granted | Answered | Wait | Copy | Taken | Conflict | Unreadable | UnknownReplay


def decide(held: Held | None, claim: Claim, now_ms: int, *, live_ms: int, registered: bool = False) -> tuple[Answer, Held | None]:
    """What `claim` gets while `held` is there, and what is to be held instead (None: what is there stays).

    `registered`: the claim's replay id is known.
    """
    if claim.replay_id is not None and claim.strict and not registered:
        return UnknownReplay(), None
    if held is None:
        return Granted(), _granted(claim, now_ms, live_ms)
    later = held.origin == claim.origin and claim.hop > held.hop
    replay = later and registered and held.state != "done"
    if held.fingerprint != claim.fingerprint and not replay:
        return Conflict(held.since_ms), None
    if held.state in ("claimed", "answered"):
        return _contend(held, claim, now_ms, live_ms, later=later)
    if (later and held.state == "waiting") or replay:
        return Granted(taken_over=True), _granted(claim, now_ms, live_ms)
    return Taken("completed" if held.state == "done" else held.state, held.since_ms), None  # type: ignore[arg-type]


def _contend(held: Held, claim: Claim, now_ms: int, live_ms: int, *, later: bool) -> tuple[Answer, Held | None]:
    """Against a claim nobody has marked yet: the same position's next owner, a later hop, or a copy."""
    own = held.position == claim.position
    if own and held.token == claim.token:
        # the same script again, after a reply that was lost
        again = replace(held, live_until_ms=now_ms + live_ms)
        return (Answered(held.answer) if held.state == "answered" else Granted()), again
    if own and claim.token.newer_than(held.token):
        if held.state == "answered":
            return Answered(held.answer), replace(
                _granted(claim, now_ms, live_ms), state="answered", since_ms=held.since_ms, answer=held.answer
            )
        if not held.alive(now_ms):
            return Granted(taken_over=True), _granted(claim, now_ms, live_ms)
    if later:
        # reading it proves that the held claim's record was committed
        return Granted(taken_over=True), _granted(claim, now_ms, live_ms)
    if own:
        return Wait(), None
    return Copy(held.position, held.token, held.alive(now_ms), held.since_ms), None


def reassert(held: Held | None, claim: Claim, now_ms: int, *, live_ms: int, began_ms: int) -> tuple[Answer, Held | None]:
    """What a claim gets that its worker still holds, after Redis may have lost data; and what is to be held instead.

    Of those who hold it the first wins. What was written before the epoch began (a snapshot's word) knows less than they do,
    unless it says `done`: that is never taken back.
    """
    if held is None:
        return Granted(), _granted(claim, now_ms, live_ms)
    if held.state == "done":
        return Taken("completed", held.since_ms), None
    if held.belongs_to(claim) and held.state in ("claimed", "answered"):
        return Granted(), replace(held, live_until_ms=now_ms + live_ms, since_ms=now_ms)
    later = held.origin == claim.origin and claim.hop > held.hop
    if held.since_ms < began_ms or later:
        return Granted(), _granted(claim, now_ms, live_ms)
    if held.state in ("waiting", "dead"):
        return Taken(held.state, held.since_ms), None
    return Copy(held.position, held.token, held.alive(now_ms), held.since_ms), None


def restore(held: Held | None, done: DoneMark) -> tuple[bool, Held | None]:
    """A completed result's mark, written again: whether it was missing, and what is held. Whoever holds the id has lost it."""
    if held is not None and held.state == "done":
        return False, held
    return True, Held("done", done.origin, done.origin, 0, RESTORED, done.fingerprint, 0, done.at_ms)


def _granted(claim: Claim, now_ms: int, live_ms: int) -> Held:
    return Held("claimed", claim.position, claim.origin, claim.hop, claim.token, claim.fingerprint, now_ms + live_ms, now_ms)


def _open(held: Held | None, claim: Claim) -> bool:
    return held is not None and held.state in ("claimed", "answered") and held.belongs_to(claim)


def mark(held: Held | None, claim: Claim, state: MarkState, now_ms: int) -> tuple[bool, Held | None]:
    """Mark a settled claim: whether it was this claim's to mark, and what is held afterwards (None: nothing)."""
    if held is None or not _open(held, claim):
        repeated = held is not None and held.state == state and (state == "done" or held.belongs_to(claim))
        return repeated, held
    if state == "forget":
        return True, None
    return True, replace(held, state=state, live_until_ms=0, since_ms=now_ms, answer=b"")


def hand_over(held: Held | None, claim: Claim, payload: bytes, now_ms: int, *, live_ms: int) -> tuple[bool, Held | None]:
    """Leave an outcome for the position's next owner: whether the claim was still this one's, and what is held."""
    if held is None or not _open(held, claim):
        return False, held
    return True, replace(held, state="answered", live_until_ms=now_ms + live_ms, since_ms=now_ms, answer=payload)


def renew(held: Held | None, claim: Claim, now_ms: int, *, live_ms: int) -> tuple[bool, Held | None]:
    """Keep a claim alive: whether it was still this one's, and what is held."""
    if held is None or not _open(held, claim):
        return False, held
    return True, replace(held, live_until_ms=now_ms + live_ms)


def void(held: Held | None, copy: Copy) -> tuple[bool, Held | None]:
    """Remove a claim whose record is gone unresolved: whether it was still the one `copy` saw, and what is held."""
    if held is None or held.state not in ("claimed", "answered") or (held.position, held.token) != (copy.position, copy.token):
        return False, held
    return True, None
