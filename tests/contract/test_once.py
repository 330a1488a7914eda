"""One contract for what is kept of a handler's steps: the rules in a dict, and the Lua scripts on a real Redis."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from headrace.claims import Lifetimes
from headrace.errors import StoreLost, StoreUnavailable
from headrace.once import MOST_KEYS, Full, Known, Lost, Run, Unknown
from headrace.store import Store
from headrace.store.memory import MemoryStore
from tests.support.stores import Bench, MemoryBench, RedisBench, a_claim, opened


@pytest.fixture
async def bench(bench: Bench) -> Bench:
    """Give an open store in which `id` is claimed."""
    await bench.store.claim([a_claim()])
    return bench


async def test_a_step_runs_once_and_its_value_is_told_afterwards(bench: Bench) -> None:
    """The first may run; from its end on everybody gets its value, in the bytes it was given."""
    steps = bench.store.steps
    assert await steps.begin(a_claim(), "charge", "n1", again=False) == Run()
    assert await steps.end(a_claim(), "charge", "n1", b'{"a": "|x|\xc3\xa9"}')
    for again in (False, True):
        assert await steps.begin(a_claim(), "charge", "n2", again=again) == Known(b'{"a": "|x|\xc3\xa9"}')


async def test_both_may_be_asked_twice(bench: Bench) -> None:
    """A reply that was lost costs nothing: the same run gets the same answer again, at its beginning and at its end."""
    steps = bench.store.steps
    for _ in range(2):
        assert await steps.begin(a_claim(), "k", "n1", again=False) == Run()
    for _ in range(2):
        assert await steps.end(a_claim(), "k", "n1", b"1")
    assert await steps.begin(a_claim(), "j", "n1", again=False) == Run()
    assert await steps.begin(a_claim(), "j", "n2", again=True) == Run(again=True)
    assert await steps.begin(a_claim(), "j", "n2", again=True) == Run(again=True)
    for _ in range(2):
        assert await steps.end(a_claim(), "j", "n2", None)


async def test_what_never_reported_back_is_unknown(bench: Bench) -> None:
    """Begun and not ended: another run is told since when, and may run only if it says that it may be done twice."""
    steps = bench.store.steps
    await steps.begin(a_claim(), "k", "n1", again=False)
    unknown = await steps.begin(a_claim(), "k", "n2", again=False)
    assert isinstance(unknown, Unknown)
    assert unknown.since_ms is not None
    assert abs(unknown.since_ms - await bench.store.time_ms()) < 60_000
    assert await steps.begin(a_claim(), "k", "n3", again=True) == Run(again=True)
    assert isinstance(await steps.begin(a_claim(), "k", "n4", again=False), Unknown)


async def test_a_run_that_was_overtaken_tells_nothing(bench: Bench) -> None:
    """A frozen former owner that wakes up can neither overwrite a later run's value nor take its beginning away."""
    steps = bench.store.steps
    await steps.begin(a_claim(), "k", "n1", again=False)
    await steps.begin(a_claim(), "k", "n2", again=True)
    assert not await steps.end(a_claim(), "k", "n1", b'"old"')
    assert not await steps.end(a_claim(), "k", "n1", None)
    assert await steps.end(a_claim(), "k", "n2", b'"new"')
    assert not await steps.end(a_claim(), "k", "n1", b'"old"')
    assert await steps.begin(a_claim(), "k", "n3", again=False) == Known(b'"new"')


async def test_what_did_not_happen_may_run_again(bench: Bench) -> None:
    """An end without a value leaves no trace."""
    steps = bench.store.steps
    await steps.begin(a_claim(), "k", "n1", again=False)
    assert await steps.end(a_claim(), "k", "n1", None)
    assert await steps.begin(a_claim(), "k", "n2", again=False) == Run()


async def test_only_the_claims_holder_begins(bench: Bench) -> None:
    """Neither without a claim, nor under another's, nor after the position was taken over, nor once the outcome is handed over."""
    steps = bench.store.steps
    assert await steps.begin(a_claim("other"), "k", "n", again=True) == Lost()
    assert await steps.begin(a_claim(by="two"), "k", "n", again=True) == Lost()
    await bench.lapse("id")
    assert await steps.begin(a_claim(), "k", "n1", again=False) == Run()  # lapsed, and nobody has taken over
    await bench.lapse("id")
    await bench.store.claim([a_claim(by="two")])
    assert await steps.begin(a_claim(), "j", "n", again=True) == Lost()
    assert isinstance(await steps.begin(a_claim(by="two"), "k", "n2", again=False), Unknown)
    await bench.store.hand_over([(a_claim(by="two"), b"x")])
    assert await steps.begin(a_claim(by="two"), "j", "n", again=True) == Lost()


async def test_a_former_owner_may_still_say_what_happened(bench: Bench) -> None:
    """Its claim was taken over and nobody has begun the step since: the value it tells is the truth, and spares the next one the doubt."""
    steps = bench.store.steps
    await steps.begin(a_claim(), "k", "n1", again=False)
    await bench.lapse("id")
    await bench.store.claim([a_claim(by="two")])
    assert await steps.end(a_claim(), "k", "n1", b"1")
    assert await steps.begin(a_claim(by="two"), "k", "n2", again=False) == Known(b"1")


async def test_a_retry_of_the_request_knows_the_steps_of_the_first(bench: Bench) -> None:
    """Steps belong to the request id: a later hop, from another topic and worker, gets their values."""
    await bench.store.steps.begin(a_claim(), "k", "n1", again=False)
    await bench.store.steps.end(a_claim(), "k", "n1", b"1")
    await bench.store.mark([(a_claim(), "waiting")])
    later = a_claim(topic="retry", offset=3, hop=1, by="two", origin=a_claim().position)
    await bench.store.claim([later])
    assert await bench.store.steps.begin(later, "k", "n2", again=False) == Known(b"1")


async def test_a_request_has_so_many_steps_and_no_more(bench: Bench) -> None:
    """Those that are there go on as ever."""
    steps = bench.store.steps
    for number in range(MOST_KEYS):
        assert await steps.begin(a_claim(), f"k{number}", "n", again=False) == Run()
    assert await steps.begin(a_claim(), "one more", "n", again=True) == Full()
    assert await steps.end(a_claim(), "k0", "n", b"1")
    assert await steps.begin(a_claim(), "k0", "n2", again=False) == Known(b"1")


async def test_any_key_will_do(bench: Bench) -> None:
    """Spaces, separators, other scripts, half a surrogate pair: each is a key of its own."""
    keys = ["a b", "a|b", "é", "\ud800", "x" * 256, "\n", "a/b"]
    for number, key in enumerate(keys):
        await bench.store.steps.begin(a_claim(), key, "n", again=False)
        await bench.store.steps.end(a_claim(), key, "n", b"%d" % number)
    assert [await bench.store.steps.begin(a_claim(), key, "m", again=False) for key in keys] == [Known(b"%d" % n) for n in range(len(keys))]


async def test_after_a_loss_nothing_begins_and_what_happened_may_still_be_told(bench: Bench) -> None:
    """Under another epoch, and while admission is closed, both are refused; afterwards the holder's end is taken, a stranger's is not."""
    steps = bench.store.steps
    await steps.begin(a_claim(), "k", "n1", again=False)
    await bench.lose()
    with pytest.raises(StoreLost):
        await steps.begin(a_claim(), "k", "n2", again=False)
    await bench.store.epochs.enter()
    for refused in (steps.begin(a_claim(), "k", "n2", again=False), steps.end(a_claim(), "k", "n1", b"1")):
        with pytest.raises(StoreLost):
            await refused
    await bench.store.reassert([a_claim()])
    await bench.store.epochs.lease("test")
    assert await bench.store.epochs.reopen("test")
    assert not await steps.end(a_claim(by="two"), "k", "n1", b"1")
    assert await steps.end(a_claim(), "k", "n1", b"1")
    assert await steps.begin(a_claim(), "k", "n3", again=False) == Known(b"1")


async def test_steps_live_as_long_as_the_mark_of_their_request(namespace: str, redis_url: str) -> None:
    """From the last of them on; then they are forgotten together."""
    lives = Lifetimes(claim_ms=400)
    memory = MemoryBench()
    memory.store = memory.memory = MemoryStore(lambda: memory.now, lives)
    redis = RedisBench(redis_url, namespace)
    redis.store = Store(redis_url, namespace, lifetimes=lives)
    for bench in (memory, redis):
        await opened(bench.store)
        await bench.store.claim([a_claim()])
        await bench.store.steps.begin(a_claim(), "k", "n1", again=False)
        await bench.store.steps.end(a_claim(), "k", "n1", b"1")
        bench.now_later(500)
        await bench.store.claim([a_claim()])
        assert await bench.store.steps.begin(a_claim(), "k", "n2", again=False) == Run()
    await redis.lose()
    await redis.store.close()
    await redis.client.aclose()


async def test_what_is_written_outlives_a_process(redis_url: str, namespace: str) -> None:
    """The form of a value, which the next version has to read, and a life set anew by a beginning and by an end."""
    bench = RedisBench(redis_url, namespace)
    await opened(bench.store)
    await bench.store.claim([a_claim()])
    key = f"{bench.prefix}once:id"
    forms = [rb"b\|\d{13}\|n1\|", rb"g\|\d{13}\|n2\|", rb'd\|\d{13}\|n2\|"v\|1"']
    for number, form in enumerate(forms):
        await bench.client.persist(key)
        if number < 2:
            await bench.store.steps.begin(a_claim(), "k", f"n{number + 1}", again=True)
        else:
            await bench.store.steps.end(a_claim(), "k", "n2", b'"v|1"')
        assert re.fullmatch(form, await bench.client.hget(key, "k"))  # type: ignore[misc]
        assert 0 < await bench.client.pttl(key) <= Lifetimes().claim_ms
    await bench.lose()
    await bench.store.close()
    await bench.client.aclose()


async def test_what_another_version_wrote_is_left_alone(redis_url: str, namespace: str) -> None:
    """It is unknown, also to whoever would run it again, and nothing is written over it."""
    bench = RedisBench(redis_url, namespace)
    await opened(bench.store)
    await bench.store.claim([a_claim()])
    await bench.client.hset(f"{bench.prefix}once:id", "k", "z|something else")  # type: ignore[misc]
    for again in (False, True):
        assert await bench.store.steps.begin(a_claim(), "k", "n", again=again) == Unknown(None)
    assert not await bench.store.steps.end(a_claim(), "k", "n", b"1")
    assert await bench.client.hget(f"{bench.prefix}once:id", "k") == b"z|something else"  # type: ignore[misc]
    await bench.lose()
    await bench.store.close()
    await bench.client.aclose()


async def test_a_store_that_is_away_says_so() -> None:
    """Neither is decided."""
    bench = MemoryBench()
    await opened(bench.store)
    bench.memory.server.away = True
    with pytest.raises(StoreUnavailable):
        await bench.store.steps.begin(a_claim(), "k", "n", again=False)
    with pytest.raises(StoreUnavailable):
        await bench.store.steps.end(a_claim(), "k", "n", None)


@pytest.mark.parametrize("seed", range(12))
async def test_any_sequence_gives_the_same_answers(redis_url: str, namespace: str, seed: int) -> None:
    """The dict and the scripts agree, call by call, over random beginnings, ends, lapses and takeovers."""
    rng = random.Random(seed)
    memory, redis = MemoryBench(), RedisBench(redis_url, namespace)
    for bench in (memory, redis):
        await opened(bench.store)
    for _ in range(60):
        claim = a_claim(rng.choice(["id", "jd"]), by=rng.choice(["one", "two"]), epoch=rng.choice([1, 2]))
        key, nonce = rng.choice(["k", "l"]), rng.choice(["n", "m"])
        what = rng.randrange(5)

        value = rng.choice([None, b"1", b'{"x":2}'])

        async def act(
            bench: Bench, what: int = what, claim: Any = claim, key: str = key, nonce: str = nonce, value: bytes | None = value
        ) -> object:
            if what == 0:
                await bench.lapse(claim.request_id) if await bench.held(claim.request_id) else None
            if what <= 1:
                (answer,) = await bench.store.claim([claim])
                return type(answer)
            if what <= 3:
                begun = await bench.store.steps.begin(claim, key, nonce, again=what == 3)
                return Unknown if isinstance(begun, Unknown) else begun
            return await bench.store.steps.end(claim, key, nonce, value)

        assert await act(memory) == await act(redis)
    await redis.lose()
    await redis.store.close()
    await redis.client.aclose()
