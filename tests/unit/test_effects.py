"""`ctx.once`: a step that runs at most once, whatever becomes of the worker, of Redis, of the step itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace import CallFailed, Context, Dead, Delay, OnceUnknown, Request, Response, Retry
from headrace.attempt import Attempts
from headrace.config import Settings
from headrace.context import Contexts
from headrace.effects import Effects
from headrace.envelope import Job, Record, Trail
from headrace.errors import ErrorClass, Failure, HeadraceError, NotHeld, StoreLost, StoreUnavailable
from headrace.guard.waiters import claim_of
from headrace.once import KEY_CHARS, MOST_KEYS, VALUE_BYTES
from headrace.outcome import Completed, Deferred
from headrace.outcome import Dead as DeadOutcome
from headrace.pauses import Pauses
from headrace.store.memory import MemoryServer, MemoryStore
from tests.support.clock import HandClock

NOW = 1_800_000_000_000
ANSWER = Response({})


class Bench:
    """A store in memory in which the request is claimed, and a request's steps."""

    def __init__(self, left_s: float = 100.0) -> None:
        self.server = MemoryServer(lambda: NOW)
        self.store = MemoryStore(lambda: NOW, server=self.server)
        self.left_s = left_s
        record = Record("main", 0, 5, 1, None, b"{}", [], NOW)
        self.job = Job(record, Trail(record.position), "r", "f", Request(request_id="r", body={}))
        self.claim = claim_of(self.job, "me", strict=True)
        self.ran = 0

    async def open(self) -> Bench:
        await self.store.epochs.enter()
        await self.store.epochs.lease("t")
        assert await self.store.epochs.reopen("t")
        await self.store.claim([self.claim])
        return self

    def effects(self) -> Effects:
        """Of another run of the handler."""
        return Effects(self.store.steps, self.claim, lambda: self.left_s)

    def step(self, value: Any = "value") -> Callable[[], Any]:
        """One that counts itself; raises `value` if it is an exception."""

        def run() -> Any:
            self.ran += 1
            if isinstance(value, BaseException):
                raise value
            return value

        return run

    async def attempt(self, handle: Callable[[Request, Context], Any], *, steps: Any = None, **settings: Any) -> Any:
        """The outcome of the real attempt code."""
        clock = HandClock(NOW)
        contexts = Contexts(clock, steps or self.store.steps, lambda job: claim_of(job, "me", strict=True))
        given = Settings(handler="m:f", **settings)
        attempts = Attempts(
            given, handle, None, Pauses(given.pause), clock, tell=lambda *_: None, rng=random.Random(1), contexts=contexts  # type: ignore[arg-type]
        )  # fmt: skip
        return await attempts(self.job)


class Failing:
    """A store that cannot say."""

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    async def begin(self, *_: object, **__: object) -> Any:
        raise self._error


@pytest.fixture
async def bench() -> Bench:
    return await Bench().open()


async def test_a_step_runs_once_over_all_runs_of_the_handler(bench: Bench) -> None:
    """Within a run and over runs; its value is what it returned."""
    effects = bench.effects()
    assert [await effects.once("k", bench.step({"a": [1]}), "dead") for _ in range(3)] == [{"a": [1]}] * 3
    assert await bench.effects().once("k", bench.step("another"), "dead") == {"a": [1]}
    assert bench.ran == 1


async def test_a_step_may_be_async(bench: Bench) -> None:
    """Its value is what it ends with."""

    async def step() -> int:
        await asyncio.sleep(0)
        return 7

    assert await bench.effects().once("k", step, "dead") == 7


async def test_what_is_returned_is_what_is_read_back(bench: Bench) -> None:
    """The first run sees the same value as the next: a tuple is a list already, and changing it changes nothing that is kept."""
    effects = bench.effects()
    first = await effects.once("k", bench.step({"a": (1, 2)}), "dead")
    assert first == {"a": [1, 2]}
    first["a"].append(3)
    assert await effects.once("k", bench.step(), "dead") == {"a": [1, 2]}


async def test_the_same_key_twice_at_once_runs_once(bench: Bench) -> None:
    """A handler may gather over a list that names something twice."""
    gate = asyncio.Event()

    async def step() -> int:
        bench.ran += 1
        await gate.wait()
        return bench.ran

    effects = bench.effects()
    both = asyncio.gather(effects.once("k", step, "dead"), effects.once("k", step, "dead"), effects.once("other", bench.step(5), "dead"))
    await asyncio.sleep(0.01)
    gate.set()
    one, two, _ = await both
    assert one == two
    assert bench.ran == 2


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError(), ConnectionResetError(), OnceUnknown("by itself")])
async def test_after_a_foreign_error_nobody_knows(bench: Bench, error: Exception) -> None:
    """A mail whose confirmation timed out may have been sent: it is not sent again unless that is said to be harmless."""
    with pytest.raises(type(error)):
        await bench.effects().once("k", bench.step(error), "dead")
    with pytest.raises(OnceUnknown, match=r"ctx\.once\(k\) was begun at 2027-01-15T08:00:00\.000Z and never reported back"):
        await bench.effects().once("k", bench.step(), "dead")
    assert bench.ran == 1
    assert await bench.effects().once("k", bench.step("again"), "again") == "again"
    assert await bench.effects().once("k", bench.step(), "dead") == "again"


@pytest.mark.parametrize("error", [Retry("x"), Delay(until=datetime.now(UTC)), Dead("x"), CallFailed(Failure(ErrorClass.TIMEOUT, "m"))])
async def test_an_error_of_headraces_own_says_that_it_did_not_happen(bench: Bench, error: HeadraceError) -> None:
    """The author says so, or the model failed: the next run may do it."""
    with pytest.raises(type(error)):
        await bench.effects().once("k", bench.step(error), "dead")
    assert await bench.effects().once("k", bench.step("done"), "dead") == "done"


async def test_a_function_finds_out(bench: Bench) -> None:
    """It is run instead of the step, only where the step may have happened, and its value is kept."""
    looked = []

    async def find() -> str:
        looked.append(1)
        return "found"

    with pytest.raises(ValueError, match="x"):
        await bench.effects().once("k", bench.step(ValueError("x")), find)
    assert not looked
    assert await bench.effects().once("k", bench.step(), find) == "found"
    assert await bench.effects().once("k", bench.step(), find) == "found"
    assert (bench.ran, looked) == (1, [1])


async def test_a_step_that_is_cut_off_is_unknown(bench: Bench) -> None:
    """A time-out in the middle of it leaves doubt."""
    began = asyncio.Event()

    async def step() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(bench.effects().once("k", step, "dead"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OnceUnknown):
        await bench.effects().once("k", bench.step(), "dead")


async def test_what_has_happened_is_written_down_all_the_same(bench: Bench) -> None:
    """The handler's time is over while Redis is away and the value waits to be kept: it is kept, and the next run has it."""
    ran = asyncio.Event()

    def step() -> str:
        bench.server.away = True
        ran.set()
        return "kept"

    task = asyncio.create_task(bench.effects().once("k", step, "dead"))
    await ran.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bench.server.away = False
    async with asyncio.timeout(30):
        while bench.server.data.steps["r"][0]["k"].value is None:  # noqa: ASYNC110  a dict tells nobody
            await asyncio.sleep(0.01)
    assert await bench.effects().once("k", bench.step("other"), "dead") == "kept"


@pytest.mark.parametrize("key", ["", "x" * (KEY_CHARS + 1), None, 7, b"k"])
async def test_a_key_nobody_can_use_is_refused_before_anything_runs(bench: Bench, key: Any) -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match="1 to 256 characters"):
        await bench.effects().once(key, bench.step(), "dead")
    assert bench.ran == 0


async def test_other_misuse_is_refused(bench: Bench) -> None:
    """A coroutine instead of a function would have begun already; an unknown word decides nothing."""
    with pytest.raises(TypeError, match="needs a function without arguments"):
        await bench.effects().once("k", 7, "dead")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'dead', 'again', or a function"):
        await bench.effects().once("k", bench.step(), "maybe")  # type: ignore[arg-type]
    assert bench.ran == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [(b"bytes", "is no JSON"), ({1: 2}, "is no JSON"), (object(), "is no JSON"), ("x" * VALUE_BYTES, "keep it elsewhere")],
)
async def test_a_value_that_cannot_be_kept_ends_the_request(bench: Bench, value: Any, says: str) -> None:
    """It has happened, so running it again would be worse: dead at once, with the remedy, and unknown from then on."""
    with pytest.raises(Dead, match=says) as caught:
        await bench.effects().once("k", bench.step(value), "dead")
    assert caught.value.code == "once_value"
    with pytest.raises(OnceUnknown):
        await bench.effects().once("k", bench.step(), "dead")


async def test_so_many_steps_and_no_more(bench: Bench) -> None:
    """A loop without an end is dead, not a Redis full of steps."""
    effects = bench.effects()
    for number in range(MOST_KEYS):
        await effects.once(str(number), bench.step(), "dead")
    with pytest.raises(Dead, match="at most 256 steps"):
        await effects.once("one more", bench.step(), "dead")


async def test_a_redis_that_is_away_is_waited_for(bench: Bench) -> None:
    """The handler goes on where it was: what it has paid for is not paid again."""
    bench.server.away = True
    task = asyncio.create_task(bench.effects().once("k", bench.step(), "dead"))
    await asyncio.sleep(0.05)
    assert not task.done()
    bench.server.away = False
    assert await task == "value"


async def test_waiting_leaves_half_of_the_time(bench: Bench) -> None:
    """Then the error of the store comes through, with time left to give the record back."""
    bench.server.away = True
    bench.left_s = 0.2
    with pytest.raises(StoreUnavailable):
        await bench.effects().once("k", bench.step(), "dead")
    assert bench.ran == 0


async def test_without_the_claim_nothing_runs(bench: Bench) -> None:
    """Another has taken over, or it went on without Redis: not this run's to do."""
    bench.server.data.held.clear()
    with pytest.raises(NotHeld):
        await bench.effects().once("k", bench.step(), "again")
    assert bench.ran == 0


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreLost("lost"), NotHeld("gone")])
async def test_an_attempt_that_cannot_go_on_without_redis_is_deferred(bench: Bench, error: HeadraceError) -> None:
    """It waits, has spent nothing, and runs again."""

    async def handle(request: Request, ctx: Context) -> Response:
        await ctx.once("k", bench.step())
        return ANSWER

    outcome = await bench.attempt(handle, steps=Failing(error), handler_timeout_s=1.0)
    assert isinstance(outcome, Deferred)
    assert NOW + 5_000 <= outcome.due_ms <= NOW + 6_000
    assert bench.ran == 0


async def test_an_unknown_step_ends_the_request(bench: Bench) -> None:
    """Let through, as class internal with a code of its own and a message that names the step; a crash is no attempt."""

    async def handle(request: Request, ctx: Context) -> Response:
        await ctx.once("charge", bench.step())
        return ANSWER

    await bench.store.steps.begin(bench.claim, "charge", "earlier", again=False)
    outcome = await bench.attempt(handle)
    assert isinstance(outcome, DeadOutcome)
    assert (outcome.failure.error_class, outcome.failure.code) == (ErrorClass.INTERNAL, "once_unknown")
    assert outcome.failure.message.startswith("ctx.once(charge) was begun at 2027-01-15T08:00:00.000Z")


async def test_an_unknown_step_can_be_caught(bench: Bench) -> None:
    """The handler knows more than Headrace: it asks the bank, and goes on."""

    async def handle(request: Request, ctx: Context) -> Response:
        try:
            await ctx.once("charge", bench.step())
        except OnceUnknown:
            return ANSWER
        raise AssertionError

    await bench.store.steps.begin(bench.claim, "charge", "earlier", again=False)
    assert isinstance(await bench.attempt(handle), Completed)
