"""The life of a claim, over random histories of copies, retries, replays, kills, freezes, hand-overs, lapses and revocations."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from headrace import claims
from headrace.claims import Answer, Answered, Claim, Copy, Granted, Held, Lifetimes, Taken, Token, Wait, decide
from headrace.envelope import Position

LIVE_MS = 15_000
MAX_HOP, MAX_DEFERS, MAX_STEPS = 3, 2, 600
Action = Callable[[], None]


@dataclass(frozen=True)
class Written:
    """A record of the one request id: `replay` is registered, an edited one brings another fingerprint."""

    origin: Position
    hop: int = 0
    replay: bool = False
    defers: int = 0
    fingerprint: str = "f"


@dataclass
class Task:
    """A worker's hold on a record. `current` ends when its partition is given away."""

    position: Position
    claim: Claim
    current: bool = True
    stage: str = "read"
    outcome: str = ""


class World:
    """One request id, its records, and the workers. Every choice is drawn from a seed; `faults` bounds the kills and freezes."""

    def __init__(self, seed: int, faults: int, broken: str = "") -> None:
        self.broken = broken
        self.rng = random.Random(seed)
        self.faults = faults
        self.now_ms = 1_000_000
        self.held: Held | None = None
        self.records = {Position("main", 0, i): Written(Position("main", 0, i)) for i in range(2)}
        self.resolved: set[Position] = set()
        self.tasks: list[Task] = []
        self.last: dict[Position, tuple[int, str]] = {}
        self.completed = 0
        self.epoch = 0
        self.log: list[str] = []

    def run(self) -> None:
        """Take enabled steps at random until none is left."""
        for _ in range(MAX_STEPS):
            steps, faults = self.enabled()
            if not steps:
                break
            label, act = self.rng.choice(faults if faults and self.faults and self.rng.random() < 0.15 else steps)
            self.log.append(label)
            act()
            assert self.completed <= 1, self.log
        assert not (set(self.records) - self.resolved), f"stuck: {self.log}"
        assert self.completed or any(outcome == "dead" for _, outcome in self.last.values()), f"lost: {self.log}"

    def enabled(self) -> tuple[list[tuple[str, Action]], list[tuple[str, Action]]]:
        steps: list[tuple[str, Action]] = []
        faults: list[tuple[str, Action]] = []
        owned = {task.position for task in self.tasks if task.current}
        unread = self.records.keys() - self.resolved - owned
        steps += [(f"read {position}", lambda p=position: self.read(p)) for position in sorted(unread)]  # type: ignore[misc]
        for task in self.tasks:
            steps += self.steps_of(task)
            faults += self.faults_of(task)
        if self.held is not None and self.held.state == "claimed" and self.held.alive(self.now_ms):
            steps.append(("lapse", self.lapse))
        return steps, faults

    def read(self, position: Position) -> None:
        self.epoch += 1
        written = self.records[position]
        claim = Claim(
            "id", position, written.origin, written.hop, Token(self.rng.choice("ab"), self.epoch), written.fingerprint,
            "r" if written.replay else None,
        )  # fmt: skip
        self.tasks.append(Task(position, claim))

    def lapse(self) -> None:
        self.now_ms += LIVE_MS + 1

    def steps_of(self, task: Task) -> list[tuple[str, Action]]:
        name = f"{task.position}#{task.claim.token}"
        match task.stage:
            case "read":
                return self.admission(task, name)
            case "claimed":
                outcomes = ["completed", "dead"] + ["retry"] * (task.claim.hop < MAX_HOP)
                return [(f"call {name} {o}", lambda o=o: self.to(task, "out", o)) for o in outcomes]  # type: ignore[misc]
            case "out" if task.current:
                return [(f"settle {name} {task.outcome}", lambda: self.settle(task))]
            case "out":
                return [(f"hand over {name}", lambda: self.hand_over(task))]
            case "duplicate" if task.current:
                return [(f"duplicate {name}", lambda: self.resolve(task))]
            case "settled":
                return [(f"mark {name}", lambda: self.mark(task))]
        return [(f"fenced {name}", lambda: self.tasks.remove(task))]

    def admission(self, task: Task, name: str) -> list[tuple[str, Action]]:
        if not task.current:  # the guard asks before it claims
            return [(f"dropped {name}", lambda: self.tasks.remove(task))]
        answer, new = decide(self.bent(task.claim), task.claim, self.now_ms, live_ms=LIVE_MS, registered=True)
        written = self.records[task.position]
        if isinstance(answer, Wait):
            return []
        if isinstance(answer, Copy):
            if answer.position in self.resolved:
                return [(f"resolved {name}", lambda: self.to(task, "duplicate"))]
            if written.defers < MAX_DEFERS:
                return [(f"defer {name}", lambda: self.defer(task, written))]
            return []
        return [(f"admit {name}", lambda: self.admit(task, answer, new))]

    def bent(self, claim: Claim) -> Held | None:
        """What is held, as a broken rule would see it."""
        held = self.held
        if held is None or held.state != "claimed":
            return held
        if self.broken == "hop" and held.origin == claim.origin and held.position != claim.position and claim.hop:
            return replace(held, hop=-1)
        return None if self.broken == "position" and not held.alive(self.now_ms) else held

    def admit(self, task: Task, answer: Answer, new: Held | None) -> None:
        if new is not None:
            self.held = new
        match answer:
            case Granted():
                self.to(task, "claimed")
            case Answered():
                self.to(task, "out", answer.payload.decode())
            case _:
                self.to(task, "duplicate")

    def to(self, task: Task, stage: str, outcome: str = "") -> None:
        task.stage, task.outcome = stage, outcome

    def write(self, written: Written) -> None:
        self.records[Position("retry", 0, len(self.records))] = written

    def resolve(self, task: Task) -> None:
        self.resolved.add(task.position)
        self.tasks.remove(task)

    def defer(self, task: Task, written: Written) -> None:
        self.write(replace(written, defers=written.defers + 1, hop=written.hop + (self.broken == "copies_keep_hop")))
        self.resolve(task)

    def settle(self, task: Task) -> None:
        assert task.position not in self.resolved, self.log
        written = self.records[task.position]
        following = Written(written.origin, written.hop + 1, fingerprint=written.fingerprint)
        if task.outcome == "retry":
            self.write(following)
        if task.outcome == "dead" and written.hop < MAX_HOP:  # a replay, doubled, perhaps edited
            edit = replace(following, replay=True, fingerprint=self.rng.choice(["f", f"edit{written.hop}"]))
            self.write(edit)
            self.write(edit)
        self.completed += task.outcome == "completed"
        self.last[written.origin] = (written.hop, task.outcome)
        self.resolved.add(task.position)
        task.stage = "settled"

    def mark(self, task: Task) -> None:
        state = {"completed": "done", "retry": "waiting", "dead": "dead"}[task.outcome]
        _, self.held = claims.mark(self.held, task.claim, state, self.now_ms)  # type: ignore[arg-type]
        self.tasks.remove(task)

    def hand_over(self, task: Task) -> None:
        _, self.held = claims.hand_over(self.held, task.claim, task.outcome.encode(), self.now_ms, live_ms=LIVE_MS)
        self.tasks.remove(task)

    def faults_of(self, task: Task) -> list[tuple[str, Action]]:
        def kill() -> None:
            self.faults -= 1
            self.tasks.remove(task)

        def freeze() -> None:
            self.faults -= 1
            task.current = False

        faults: list[tuple[str, Action]] = [(f"kill {task.position}#{task.claim.token}", kill)]
        if task.current and task.stage != "settled":
            faults.append((f"freeze {task.position}#{task.claim.token}", freeze))
        return faults


@pytest.mark.parametrize("faults", [0, 1, 3, 8])
def test_no_history_completes_twice_sticks_or_loses(faults: int) -> None:
    """At most one `completed`, nothing stuck, and all resolved means one `completed` or an open dead letter."""
    for seed in range(4_000):
        World(seed, faults).run()


@pytest.mark.parametrize("broken", ["hop", "position", "copies_keep_hop", "token"])
def test_the_histories_can_tell_a_broken_rule(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same histories fail where an equal hop or a copy takes over, a copy adds a hop, or nobody checks tokens."""
    if broken == "token":
        monkeypatch.setattr(Held, "belongs_to", lambda _held, _claim: True)
    with pytest.raises(AssertionError):  # noqa: PT012  # which of the histories fails does not matter
        for seed in range(6_000):
            World(seed, 4, broken).run()


def test_tokens_of_one_process_are_ordered_and_others_are_not() -> None:
    """Epochs compare only within a process; between processes the group has fenced the older owner."""
    assert Token("a", 2).newer_than(Token("a", 1))
    assert not Token("a", 1).newer_than(Token("a", 1))
    assert Token("b", 1).newer_than(Token("a", 9))
    assert Token.parse("a/b/7") == Token("a/b", 7)


def test_a_claim_lives_as_long_as_the_results() -> None:
    """A claim never expires into absent before the marks do; `waiting` outlives delay and retention, dead letters a day."""
    lifetimes = Lifetimes()
    assert lifetimes.of("claimed") == lifetimes.of("answered") == lifetimes.of("done") == 14 * 86_400_000
    assert lifetimes.of("waiting") == 8 * 86_400_000
    assert lifetimes.of("dead") == 86_400_000


def test_a_waiting_id_goes_on_only_for_its_own_later_hop() -> None:
    """A stray copy of a waiting request is a duplicate; its committed retry goes on."""
    origin = Position("main", 0, 0)
    first = Claim("id", origin, origin, 0, Token("a", 1), "f")
    _, held = decide(None, first, 0, live_ms=LIVE_MS)
    _, held = claims.mark(held, first, "waiting", 5)
    retry = Claim("id", Position("retry", 0, 3), origin, 1, Token("b", 1), "f")
    assert decide(held, retry, 9, live_ms=LIVE_MS)[0] == Granted(taken_over=True)
    stray = Claim("id", Position("main", 0, 8), Position("main", 0, 8), 0, Token("b", 1), "f")
    assert decide(held, stray, 9, live_ms=LIVE_MS) == (Taken("waiting", 5), None)
    assert decide(held, retry._replace(hop=0), 9, live_ms=LIVE_MS)[0] == Taken("waiting", 5)
