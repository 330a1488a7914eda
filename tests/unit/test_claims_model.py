"""Every interleaving, over the real rules of `claims`: two copies of one request, retries, kills, revocations, lapses, and a Redis that loses its data.

A small world: records A and B carry the same id; each is read by its partition's owner, claimed, called, settled, marked. Redis
may be emptied, or put back to what it held at some earlier moment; then a new epoch closes admission, who is alive claims again
what it holds, completed results are restored, and admission opens. Checked in each state: no second `completed`; nothing stuck;
nothing lost. The gap that DESIGN names (an owner frozen while Redis loses its data) is left out: everybody alive claims again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from headrace import claims
from headrace.claims import Answered, Claim, Copy, DoneMark, Granted, Held, Taken, Token
from headrace.envelope import Position

ALL = "HEADRACE_TEST_MODEL" in os.environ  # the largest takes minutes
LIVE_MS = 5
ORIGINS = (Position("m", 0, 0), Position("m", 1, 0))
Phase = Literal["open", "lost", "closed", "restored", "restored again"]
MARKS = {"C": "done", "R": "waiting", "D": "dead"}


@dataclass(frozen=True, slots=True)
class Task:
    """One worker's work on one record. `ours`: its partition has not gone; `known`: the losses it has taken part in."""

    position: Position
    epoch: int
    ours: bool
    stage: str  # read, claimed, out:X, lost, lost:X, settled:X, dup
    known: int


@dataclass(frozen=True, slots=True)
class World:
    """All there is. `records`: position to (origin, hop); `saved`: what a file of Redis holds; budgets of what may still go wrong."""

    records: tuple[tuple[Position, Position, int], ...]
    resolved: frozenset[Position] = frozenset()
    completed: int = 0
    dead: bool = False
    redis: Held | None = None
    saved: Held | None = None
    tasks: frozenset[Task] = frozenset()
    epochs: tuple[tuple[Position, int], ...] = ()
    phase: Phase = "open"
    losses: int = 0
    faults: int = 1
    losses_left: int = 1
    saves_left: int = 0

    @property
    def now(self) -> int:
        """Time passes with losses only: after one, what was alive before has lapsed."""
        return 1_000 + 100 * self.losses


def claim_of(world: World, task: Task) -> Claim:
    """What the task brings to Redis."""
    origin, hop = next((o, h) for p, o, h in world.records if p == task.position)
    return Claim("id", task.position, origin, hop, Token(f"w{task.position.partition}{task.position.topic}{task.epoch}", task.epoch), "f")


def moved(world: World, task: Task, stage: str | None, **changes: object) -> World:
    """The task at another stage (None: ended)."""
    tasks = world.tasks - {task} | ({replace(task, stage=stage)} if stage else frozenset())
    return replace(world, tasks=tasks, **changes)


def admitted(world: World, task: Task, stage: str) -> Iterator[World]:
    """One admission script for a record that was read, or for a loser that waits with its outcome."""
    kept = stage[5:] if stage.startswith("lost:") else ""
    answer, new = claims.decide(world.redis, claim_of(world, task), world.now, live_ms=LIVE_MS)
    redis = world.redis if new is None else new
    match answer:
        case Granted():
            yield moved(world, task, f"out:{kept}" if kept else "claimed", redis=redis)
        case Answered(payload=payload):
            yield moved(world, task, "out:" + payload.decode(), redis=redis)
        case Taken():
            yield moved(world, task, "dup")
        case Copy(position=position) if position in world.resolved:
            yield moved(world, task, "dup")
        case _:
            return


def worked(world: World, task: Task) -> Iterator[World]:
    """What a task does next, Redis permitting."""
    can_write = world.phase != "lost" and task.known == world.losses
    stage, claim = task.stage, claim_of(world, task)
    if stage == "read" or stage.startswith("lost:"):
        if can_write and world.phase == "open" and task.ours:
            yield from admitted(world, task, stage)
    elif stage in ("claimed", "lost"):
        for outcome in "CRD" if claim.hop == 0 else "CD":
            yield moved(world, task, ("out:" if stage == "claimed" else "lost:") + outcome)
    elif stage == "dup":
        yield moved(world, task, None, resolved=world.resolved | {task.position}) if task.ours else moved(world, task, None)
    elif stage.startswith("out:") and task.ours:
        yield settled(world, task, stage[4:])
    elif stage.startswith("out:") and can_write:
        _, redis = claims.hand_over(world.redis, claim, stage[4:].encode(), world.now, live_ms=LIVE_MS)
        yield moved(world, task, None, redis=redis)
    elif stage.startswith("settled:") and can_write:
        _, redis = claims.mark(world.redis, claim, MARKS[stage[8:]], world.now)  # type: ignore[arg-type]
        yield moved(world, task, None, redis=redis)


def settled(world: World, task: Task, outcome: str) -> World:
    """One transaction of Kafka: the outcome, and the offset. Redis has no part in it."""
    records = world.records
    claim = claim_of(world, task)
    if outcome == "R":
        retry = Position(f"r{task.position.partition}", task.position.partition, 0)
        records = (*records, (retry, claim.origin, claim.hop + 1))
    return moved(
        world, task, f"settled:{outcome}", records=records, resolved=world.resolved | {task.position},
        completed=world.completed + (outcome == "C"), dead=world.dead or outcome == "D",
    )  # fmt: skip


def faulty(world: World, task: Task) -> Iterator[World]:
    """Killed, or its partition taken away."""
    if world.faults:
        yield moved(world, task, None, faults=world.faults - 1)
        if task.ours and not task.stage.startswith("settled"):
            tasks = world.tasks - {task} | {replace(task, ours=False)}
            yield replace(world, tasks=tasks, faults=world.faults - 1)


def dropped(world: World, task: Task) -> Iterator[World]:
    """A loser or reader whose partition went: its record is read again by the next owner."""
    if not task.ours and (task.stage == "read" or task.stage.startswith("lost")):
        yield moved(world, task, None)


def lost(world: World) -> Iterator[World]:
    """Redis' own ways."""
    if world.redis is not None and world.redis.state == "claimed" and world.redis.alive(world.now):
        yield replace(world, redis=replace(world.redis, live_until_ms=0))
    if world.phase == "open" and world.saves_left and world.redis is not None:
        yield replace(world, saved=world.redis, saves_left=0)
    if world.phase == "open" and world.losses_left:
        gone = replace(world, phase="lost", losses=world.losses + 1, losses_left=world.losses_left - 1, saved=None, saves_left=0)
        yield replace(gone, redis=None)
        if world.saved is not None and world.saved != world.redis:
            yield replace(gone, redis=world.saved)
    if world.phase == "lost":
        yield replace(world, phase="closed")


def recovered(world: World, *, reassert: bool, restore: bool, again: bool) -> Iterator[World]:
    """Claim again; restore; once everybody alive has claimed again, restore what was settled meanwhile; open."""
    if world.phase not in ("closed", "restored", "restored again"):
        return
    late = [task for task in world.tasks if task.known < world.losses]
    for task in late:
        yield claimed_again(world, task) if reassert else replace(world, tasks=world.tasks - {task} | {replace(task, known=world.losses)})
    redis = world.redis
    if restore and world.completed:
        _, redis = claims.restore(redis, DoneMark("id", ORIGINS[0], "f", world.now))
    if world.phase == "closed":
        yield replace(world, phase="restored", redis=redis)
    elif world.phase == "restored again":
        yield replace(world, phase="open")
    elif not late:
        yield replace(world, phase="restored again", redis=redis if again else world.redis)


def claimed_again(world: World, task: Task) -> World:
    """What a worker alive does under the new epoch, with what it holds or has settled."""
    now_known = replace(task, known=world.losses)
    tasks = world.tasks - {task}
    if task.stage == "settled:C":
        _, redis = claims.restore(world.redis, DoneMark("id", ORIGINS[0], "f", world.now))
        return replace(world, tasks=tasks | {now_known}, redis=redis)
    if task.stage == "claimed" or task.stage.startswith(("out:", "settled:")):
        answer, new = claims.reassert(world.redis, claim_of(world, task), world.now, live_ms=LIVE_MS, began_ms=world.now)
        redis = world.redis if new is None else new
        if isinstance(answer, Granted) or task.stage.startswith("settled:"):
            return replace(world, tasks=tasks | {now_known}, redis=redis)
        stage = "lost" if task.stage == "claimed" else "lost:" + task.stage[4:]
        return replace(world, tasks=tasks | {replace(now_known, stage=stage)}, redis=redis)
    return replace(world, tasks=tasks | {now_known})


def successors(world: World, *, reassert: bool = True, restore: bool = True, again: bool = True) -> tuple[list[World], list[World]]:
    """What may happen next: by itself, and by a fault."""
    epochs = dict(world.epochs)
    going: list[World] = []
    owned = {task.position for task in world.tasks if task.ours}
    for position, _, _ in world.records:
        if position not in world.resolved and position not in owned:
            epoch = epochs.get(position, 0) + 1
            task = Task(position, epoch, ours=True, stage="read", known=world.losses)
            numbered = tuple(sorted((epochs | {position: epoch}).items()))
            going.append(replace(world, tasks=world.tasks | {task}, epochs=numbered))
    for task in world.tasks:
        going += worked(world, task)
        going += dropped(world, task)
    going += recovered(world, reassert=reassert, restore=restore, again=again)
    going += lost(world)
    return going, [bad for task in world.tasks for bad in faulty(world, task)]


def explore(world: World, **without: bool) -> tuple[int, str | None]:
    """All that can be reached: how many states, and what broke first."""
    seen, stack = {world}, [world]
    while stack:
        here = stack.pop()
        going, bad = successors(here, **without)
        if here.completed > 1:
            return len(seen), f"two completed: {here}"
        if all(position in here.resolved for position, _, _ in here.records):
            if not here.completed and not here.dead:
                return len(seen), f"lost: {here}"
        elif not going:
            return len(seen), f"stuck: {here}"
        for there in going + bad:
            if there not in seen:
                seen.add(there)
                stack.append(there)
    return len(seen), None


def start(faults: int, losses: int, saves: int) -> World:
    """Both copies unread."""
    return World(tuple((origin, origin, 0) for origin in ORIGINS), faults=faults, losses_left=losses, saves_left=saves)


@pytest.mark.parametrize(("faults", "losses", "saves"), [(1, 0, 0), (0, 1, 0), (0, 1, 1), *([(1, 1, 0), (1, 1, 1)] if ALL else [])])
def test_no_interleaving_breaks_a_promise(faults: int, losses: int, saves: int) -> None:
    """At most one completed, nothing stuck, nothing lost, in every state that can be reached."""
    states, broken = explore(start(faults, losses, saves))
    assert broken is None
    assert states > 300


@pytest.mark.parametrize("without", ["reassert", "restore", "again"])
def test_each_step_of_recovery_is_needed(without: str) -> None:
    """Without claiming again, without restoring, or without doing so again at the end, there is a way to two completed results."""
    _, broken = explore(start(1, 1, 0), **{without: False})
    assert broken is not None
    assert broken.startswith("two completed")
