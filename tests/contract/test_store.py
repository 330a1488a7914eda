"""One contract, two stores: the model in a dict, and the Lua scripts on a real Redis."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis.exceptions

from headrace.claims import (
    Answered,
    Claim,
    Conflict,
    Copy,
    DoneMark,
    Granted,
    Lifetimes,
    Taken,
    Token,
    UnknownReplay,
    Unreadable,
    Wait,
)
from headrace.envelope import Position
from headrace.errors import ConfigError, StoreLost, StoreUnavailable
from headrace.store import Store
from headrace.store.memory import MemoryStore
from headrace.store.store import REDIS_ERRORS, map_error
from tests.support.stores import Bench, RedisBench, a_claim, opened


@pytest.fixture
async def real(redis_url: str, namespace: str) -> AsyncIterator[RedisBench]:
    """Give the store on Redis alone."""
    made = RedisBench(redis_url, namespace)
    await opened(made.store)
    yield made
    await made.lose()
    await made.store.close()
    await made.client.aclose()


async def test_an_absent_id_is_granted_and_again_to_the_same_token(bench: Bench) -> None:
    """A claim whose reply was lost may be sent again, and is granted again."""
    assert await bench.store.claim([a_claim()]) == [Granted()]
    assert await bench.store.claim([a_claim()]) == [Granted()]


async def test_a_batch_is_answered_in_order_and_sees_itself(bench: Bench) -> None:
    """Two records of one id in one batch: the first is granted, the second is its copy; more than one script call in all."""
    batch = [a_claim(f"id{i}", i) for i in range(1100)] + [a_claim("id7", 5000)]
    answers = await bench.store.claim(batch)
    assert answers[:-1] == [Granted()] * 1100
    copy = answers[-1]
    assert isinstance(copy, Copy)
    assert (copy.position, copy.token, copy.alive) == (Position("main", 0, 7), Token("one", 1), True)


async def test_only_the_same_position_takes_over_and_only_after_a_lapse(bench: Bench) -> None:
    """The position's next owner waits while the claim lives, and takes over when it has lapsed; a copy never does."""
    await bench.store.claim([a_claim()])
    assert await bench.store.claim([a_claim(by="two")]) == [Wait()]
    await bench.lapse("id")
    copy = (await bench.store.claim([a_claim(offset=9, by="two")]))[0]
    assert isinstance(copy, Copy)
    assert not copy.alive
    assert await bench.store.claim([a_claim(by="two")]) == [Granted(taken_over=True)]


async def test_a_claim_let_lapse_is_taken_over_at_once(bench: Bench) -> None:
    """Letting go is a lapse and no removal: the same position takes over without waiting, nobody else does."""
    await bench.store.claim([a_claim()])
    assert await bench.store.lapse([a_claim()]) == [True]
    assert isinstance((await bench.store.claim([a_claim(offset=9, by="two")]))[0], Copy)
    assert await bench.store.claim([a_claim(by="two")]) == [Granted(taken_over=True)]


async def test_an_older_epoch_of_one_process_never_takes_over(bench: Bench) -> None:
    """A task of an assignment that ended finds a lapsed claim of the next one, and leaves it alone."""
    await bench.store.claim([a_claim(epoch=3)])
    await bench.lapse("id")
    assert await bench.store.claim([a_claim(epoch=2)]) == [Wait()]
    assert await bench.store.claim([a_claim(epoch=4)]) == [Granted(taken_over=True)]


async def test_a_higher_hop_of_the_same_origin_takes_over_at_once(bench: Bench) -> None:
    """Reading the retry proves that the claim's record was committed, so a lost mark does not hold it up."""
    await bench.store.claim([a_claim()])
    retry = a_claim(topic="retry", offset=4, hop=1, origin=Position("main", 0, 0), by="two")
    assert await bench.store.claim([retry]) == [Granted(taken_over=True)]


@pytest.mark.parametrize(("state", "of"), [("done", "completed"), ("waiting", "waiting"), ("dead", "dead")])
async def test_a_marked_id_is_taken(bench: Bench, state: str, of: str) -> None:
    """A settled id answers a copy with what it is and since when; repeating the mark changes nothing."""
    claim = a_claim()
    await bench.store.claim([claim])
    assert await bench.store.mark([(claim, state)]) == [True]  # type: ignore[list-item]
    since = bench.store.server_ms
    assert await bench.store.mark([(claim, state)]) == [True]  # type: ignore[list-item]
    assert await bench.store.claim([a_claim(offset=2)]) == [Taken(of, since)]  # type: ignore[arg-type]


async def test_a_mark_by_another_token_is_refused(bench: Bench) -> None:
    """A thawed worker whose claim was taken over cannot mark, renew or hand over any longer."""
    old, new = a_claim(), a_claim(by="two")
    await bench.store.claim([old])
    await bench.lapse("id")
    await bench.store.claim([new])
    assert await bench.store.mark([(old, "done")]) == [False]
    assert await bench.store.renew([old, new]) == [False, True]
    assert await bench.store.hand_over([(old, b"x")]) == [False]
    assert await bench.store.mark([(old, "forget")]) == [False]
    assert (await bench.held("id")) is not None


async def test_forget_makes_the_id_free(bench: Bench) -> None:
    """A request that was never called leaves no mark: a corrected one may use its id."""
    await bench.store.claim([a_claim()])
    assert await bench.store.mark([(a_claim(), "forget")]) == [True]
    assert await bench.store.claim([a_claim(offset=8, fingerprint="g")]) == [Granted()]


async def test_a_handed_over_answer_goes_to_the_positions_next_owner(bench: Bench) -> None:
    """The bytes come back untouched, again if the reply was lost; a copy does not get them; the mark ends it."""
    old, new = a_claim(), a_claim(by="two")
    payload = bytes(range(256)) + b"|" * 20
    await bench.store.claim([old])
    assert await bench.store.hand_over([(old, payload)]) == [True]
    assert isinstance((await bench.store.claim([a_claim(offset=3)]))[0], Copy)
    assert await bench.store.claim([new, new]) == [Answered(payload), Answered(payload)]
    assert await bench.store.mark([(new, "done")]) == [True]
    held = await bench.held("id")
    assert held is not None
    assert (held.state, held.answer) == ("done", b"")


async def test_large_answers_are_handed_over_in_several_calls(bench: Bench) -> None:
    """Answers of 3 MB each all arrive; no single script carries them all."""
    batch = [(a_claim(f"id{i}", i), bytes([i]) * 3_000_000) for i in range(4)]
    await bench.store.claim([claim for claim, _ in batch])
    assert await bench.store.hand_over(batch) == [True] * 4
    answers = [(await bench.store.claim([claim._replace(token=Token("two", 1))]))[0] for claim, _ in batch]
    assert answers == [Answered(payload) for _, payload in batch]


async def test_another_content_is_a_conflict(bench: Bench) -> None:
    """Same id, another fingerprint: refused, whatever the state; the holder is untouched."""
    await bench.store.claim([a_claim()])
    since = bench.store.server_ms
    assert await bench.store.claim([a_claim(offset=2, fingerprint="g")]) == [Conflict(since)]
    await bench.store.mark([(a_claim(), "done")])
    assert isinstance((await bench.store.claim([a_claim(offset=2, fingerprint="g")]))[0], Conflict)


async def test_a_registered_replay_goes_on_from_dead_with_an_edit(bench: Bench) -> None:
    """Dead goes on for a registered replay of the same origin with a higher hop, once; an unknown replay is named as such."""
    dead = a_claim()
    await bench.store.claim([dead])
    await bench.store.mark([(dead, "dead")])
    replay = a_claim(offset=20, hop=1, origin=dead.position, fingerprint="edited", replay_id="r1")
    assert await bench.store.claim([replay]) == [UnknownReplay()]
    await bench.store.register_replay("r1", 60_000)
    assert isinstance((await bench.store.claim([replay._replace(origin=Position("main", 0, 77))]))[0], Conflict)
    assert await bench.store.claim([replay]) == [Granted(taken_over=True)]
    assert isinstance((await bench.store.claim([replay._replace(position=Position("main", 0, 21))]))[0], Copy)


async def test_an_edited_replay_goes_on_where_the_dead_mark_was_lost(bench: Bench) -> None:
    """A crash between the commit and the mark must not turn the operator's edit into a conflict."""
    await bench.store.claim([a_claim()])
    await bench.store.register_replay("r1", 60_000)
    replay = a_claim(offset=20, hop=1, origin=Position("main", 0, 0), fingerprint="edited", replay_id="r1")
    assert await bench.store.claim([replay]) == [Granted(taken_over=True)]
    await bench.store.mark([(replay, "done")])
    assert isinstance((await bench.store.claim([replay._replace(hop=2, fingerprint="again")]))[0], Conflict)


async def test_an_unknown_replay_in_retry_is_merely_none(bench: Bench) -> None:
    """A retry of a replay whose registration has run out is handled as any retry."""
    assert await bench.store.claim([a_claim(replay_id="gone", strict=False)]) == [Granted()]


async def test_void_removes_only_the_claim_that_was_seen(bench: Bench) -> None:
    """A claim taken over between the look and the removal stays."""
    await bench.store.claim([a_claim()])
    seen = (await bench.store.claim([a_claim(offset=5)]))[0]
    assert isinstance(seen, Copy)
    assert await bench.store.void([("id", replace(seen, token=Token("two", 1)))]) == [False]
    assert await bench.store.void([("id", seen)]) == [True]
    assert await bench.store.void([("id", seen)]) == [False]
    assert await bench.store.claim([a_claim(offset=5)]) == [Granted()]


async def test_another_epoch_is_a_loss_until_reopened(bench: Bench) -> None:
    """Redis came back empty: every write says so, and nothing is granted."""
    await bench.store.claim([a_claim()])
    await bench.lose()
    with pytest.raises(StoreLost):
        await bench.store.claim([a_claim("other")])
    with pytest.raises(StoreLost):
        await bench.store.mark([(a_claim(), "done")])
    await opened(bench.store)
    assert await bench.store.claim([a_claim()]) == [Granted()]


async def test_a_first_start_writes_the_epoch_and_a_second_takes_it(bench: Bench) -> None:
    """Only the first finds nothing; whoever comes later takes the epoch that stands, with admission open."""
    other = bench.another()
    await other.open()
    entered = await other.epochs.enter()
    assert (entered.loss, entered.fresh, entered.closed) == (False, True, None)
    assert await other.claim([a_claim()]) == [Granted()]
    assert isinstance((await bench.store.claim([a_claim(offset=1)]))[0], Copy)
    await other.close()


async def test_one_of_two_writes_the_new_epoch_and_nothing_is_granted_while_it_is_closed(bench: Bench) -> None:
    """After a loss the first to enter closes admission, the second joins it; claims are refused, held ones are claimed again, the leaseholder alone opens."""
    other = bench.another()
    await other.open()
    await other.epochs.enter()
    await bench.lose()
    first, second = await bench.store.epochs.enter(), await other.epochs.enter()
    assert (first.loss, second.loss) == (True, False)
    assert first.closed == second.closed
    with pytest.raises(StoreLost):
        await other.claim([a_claim()])
    assert await other.reassert([a_claim()]) == [Granted()]
    mine, theirs = await bench.store.epochs.lease("one"), await other.epochs.lease("two")
    assert mine is not None
    assert mine.mine
    assert theirs is not None
    assert not theirs.mine
    assert not await other.epochs.reopen("two")
    assert await bench.store.epochs.reopen("one")
    assert await other.epochs.lease("two") is None
    assert isinstance((await bench.store.claim([a_claim(offset=1)]))[0], Copy)
    await other.close()


async def test_a_snapshot_is_given_away_by_its_beat(bench: Bench) -> None:
    """Rolled back under a connection that stays, with the same epoch: the beat is older than the one this worker knows, and is refused."""
    await bench.store.epochs.beat()
    saved = await bench.saved()
    await bench.store.epochs.beat()
    bench.now_later(50)
    await bench.store.epochs.beat()
    await bench.roll_back(saved)
    with pytest.raises(StoreLost):
        await bench.store.epochs.beat()
    entered = await bench.store.epochs.enter()
    assert (entered.loss, entered.fresh) == (True, True)


async def test_a_snapshot_of_before_the_epoch_is_a_loss_again(bench: Bench) -> None:
    """Lost, entered anew, then rolled back to a file of before: the older epoch is not taken for a newer one."""
    await bench.store.epochs.beat()
    saved = await bench.saved()
    await bench.lose()
    assert (await bench.store.epochs.enter()).loss
    await bench.roll_back(saved)
    with pytest.raises(StoreLost):
        await bench.store.mark([(a_claim(), "done")])
    entered = await bench.store.epochs.enter()
    assert (entered.loss, entered.fresh) == (True, True)
    assert entered.closed is not None
    assert entered.closed.from_ms > 0, "from a minute before the file's last beat"


async def test_a_restarted_server_is_a_loss_until_it_is_entered(bench: Bench) -> None:
    """Another server process stands behind the connection: nothing is sent to it before it is entered, and that is a loss."""
    await bench.store.claim([a_claim()])
    await bench.restart()
    with pytest.raises(StoreLost):
        await bench.store.claim([a_claim("other")])
    entered = await bench.store.epochs.enter()
    assert (entered.loss, entered.fresh) == (True, True)


async def test_claims_are_claimed_again_first_come_first_served(bench: Bench) -> None:
    """Within the new epoch the first wins; an older word gives way unless it is done; a later hop goes on."""
    await bench.store.claim([a_claim("stale", 1), a_claim("done", 2)])
    await bench.store.mark([(a_claim("done", 2), "done")])
    bench.now_later(5)
    await bench.restart()
    await bench.store.epochs.enter()
    assert await bench.store.reassert([a_claim("stale", 9, by="two"), a_claim("new", 3)]) == [Granted(), Granted()]
    lost = (await bench.store.reassert([a_claim("stale", 1)]))[0]
    assert isinstance(lost, Copy)
    assert lost.position == Position("main", 0, 9)
    assert isinstance((await bench.store.reassert([a_claim("done", 7, by="two")]))[0], Taken)
    retry = a_claim("new", 4, topic="retry", hop=1, origin=Position("main", 0, 3), by="two")
    assert await bench.store.reassert([retry, retry]) == [Granted(), Granted()]


async def test_completed_results_are_marked_again(bench: Bench) -> None:
    """Done whatever is held; a second time is no change; a mark that comes late finds itself done; a copy learns since when."""
    await bench.lose()
    await bench.store.epochs.enter()
    await bench.store.reassert([a_claim("held", 2)])
    now = await bench.store.time_ms()
    marks = [DoneMark("gone", Position("main", 0, 1), "f", now - 5_000), DoneMark("held", Position("main", 0, 2), "f|%", now + 9_000)]
    assert await bench.store.restore(marks) == [True, True]
    assert await bench.store.restore(marks) == [False, False]
    assert await bench.store.mark([(a_claim("held", 2), "done")]) == [True]
    await bench.store.epochs.lease("one")
    assert await bench.store.epochs.reopen("one")
    assert await bench.store.claim([a_claim("gone", 9)]) == [Taken("completed", now - 5_000)]
    held = await bench.held("held")
    assert held is not None
    assert held.since_ms <= bench.store.server_ms, "a worker's clock may be ahead; ours is Redis'"


async def test_pauses_are_shared_and_the_first_is_known(bench: Bench) -> None:
    """One of many workers is the first to pause a target, and so the one that alerts."""
    assert await bench.store.put_pause("openai|key|gpt", '{"why":"quota"}', 60_000)
    assert not await bench.store.put_pause("openai|key|gpt", '{"why":"quota"}', 60_000)
    assert await bench.store.put_pause("other", "{}", 60_000)
    assert await bench.store.pauses() == {"openai|key|gpt": '{"why":"quota"}', "other": "{}"}
    await bench.store.drop_pause("other")
    assert list(await bench.store.pauses()) == ["openai|key|gpt"]


async def test_hostile_origins_and_replay_ids_stay_in_their_field(bench: Bench) -> None:
    """Separators, percent signs and half a surrogate pair in headers neither shift a field nor forge another's claim."""
    origin = Position("a|b%7C|claimed|\ud800", 3, 4)
    claim = a_claim(origin=origin, replay_id="x|{other}:\ud800 y", strict=False, fingerprint="f|1|%")
    assert await bench.store.claim([claim]) == [Granted()]
    assert await bench.store.claim([claim]) == [Granted()]
    assert await bench.store.claim([claim._replace(position=Position("m", 0, 99), hop=1)]) == [Granted(taken_over=True)]


async def test_the_scripts_follow_the_model_step_by_step(real: RedisBench) -> None:
    """Over seeded random histories every answer and every value held is what `claims` says, at Redis' own time."""
    now = [0]
    for seed in range(60):
        memory = MemoryStore(lambda: now[0])
        await opened(memory)
        await real.store.register_replay(f"r{seed}", 60_000)
        now[0] = real.store.server_ms or await real.store.time_ms()
        await memory.register_replay(f"r{seed}", 60_000)
        await _history(random.Random(seed), seed, real, memory, now)


async def _history(rng: random.Random, seed: int, real: RedisBench, memory: MemoryStore, now: list[int]) -> None:
    name = f"id{seed}"
    seen: list[Copy] = []
    for _ in range(40):
        claim = Claim(
            name, Position("t", 0, rng.randrange(3)), Position("t", 0, rng.randrange(2)), rng.randrange(3),
            Token(rng.choice("ab"), rng.randrange(2)), rng.choice("ffffg"), rng.choice([None, f"r{seed}", "unknown"]), rng.random() < 0.5,
        )  # fmt: skip
        held = memory.held(name)
        if held is not None and rng.random() < 0.6:
            claim = claim._replace(position=held.position, origin=held.origin, hop=held.hop, token=held.token, fingerprint=held.fingerprint)
        op = rng.choice(["claim", "claim", "claim", "mark", "hand_over", "renew", "lapse", "void"])
        state = rng.choice(["done", "waiting", "dead", "forget"])
        results: list[Any] = []
        sides: tuple[Store | MemoryStore, ...] = (real.store, memory)
        for side in sides:
            if op == "claim":
                results.append(await side.claim([claim]))
            elif op == "mark":
                results.append(await side.mark([(claim, state)]))  # type: ignore[list-item]
            elif op == "hand_over":
                results.append(await side.hand_over([(claim, b"answer|\n")]))
            elif op == "renew":
                results.append(await side.renew([claim]))
            elif op == "void" and seen:
                results.append(await side.void([(name, seen[-1])]))
            elif op == "lapse" and held is not None and held.live_until_ms:
                if side is memory:
                    memory.server.data.held[name] = (replace(held, live_until_ms=0), memory.server.data.held[name][1])
                else:
                    await real.lapse(name)
            now[0] = real.store.server_ms
        assert len(results) < 2 or results[0] == results[1], (seed, op, claim, held)
        assert await real.held(name) == memory.held(name), (seed, op, claim, held)
        seen += [answer for answer in results[:1] and results[0] if isinstance(answer, Copy)]


@pytest.mark.parametrize("value", [b"z2|whatever", b"c2|1767000000000|1767000000000|m/0/1|m/0/1|0|a/1|f|", b"", b"\xff\xfe{", b"c|17|17|a"])
async def test_what_another_version_holds_is_neither_granted_nor_concluded_from(real: RedisBench, value: bytes) -> None:
    """A claim of a form this version does not know: the record waits, in the end as a copy would; nothing is written over it."""
    key = f"{real.prefix}claim:id"
    await real.client.set(key, value)
    claim = a_claim()
    assert await real.store.claim([claim, a_claim("other", 2)]) == [Unreadable(), Granted()]
    assert await real.store.reassert([claim]) == [Unreadable()]
    assert await real.store.mark([(claim, "done")]) == [False]
    assert await real.store.renew([claim]) == [False]
    assert await real.store.hand_over([(claim, b"x")]) == [False]
    assert await real.client.get(key) == value


async def test_a_pause_of_another_version_is_left_alone(real: RedisBench) -> None:
    """Neither read nor removed; ours beside it works."""
    await real.client.hset(f"{real.prefix}pauses", mapping={"other": b"v9;\xff", "short": b"1"})
    assert await real.store.put_pause("ours", "{}", 60_000)
    assert await real.store.pauses() == {"ours": "{}"}
    assert await real.client.hget(f"{real.prefix}pauses", "other") == b"v9;\xff"


async def test_script_flush_under_load_fails_nothing(real: RedisBench) -> None:
    """Scripts flushed while batches are claimed and marked: every call succeeds (field case 23)."""
    done = asyncio.Event()

    async def flush() -> int:
        count = 0
        while not done.is_set():
            await real.client.script_flush()
            count += 1
            await asyncio.sleep(0.002)
        return count

    flusher = asyncio.create_task(flush())
    for i in range(150):
        batch = [a_claim(f"{i}-{j}", j) for j in range(20)]
        assert await real.store.claim(batch) == [Granted()] * 20
        assert await real.store.mark([(claim, "done") for claim in batch]) == [True] * 20
    done.set()
    assert await flusher > 10


async def test_connections_killed_under_load_fail_nothing(real: RedisBench) -> None:
    """The pooled connection is cut between two calls, as a restart does: the call is sent again, with the same answer."""
    for i in range(20):
        mine = await real.store._client.client_id()  # type: ignore[union-attr]
        assert await real.client.client_kill_filter(_id=str(mine)) == 1
        assert await real.store.claim([a_claim(f"k{i}")]) == [Granted()]


async def test_values_expire_as_their_state_says(real: RedisBench) -> None:
    """The life of a value follows its state, a renewal does not shorten or lengthen it."""
    lifetimes = Lifetimes()
    claim = a_claim()
    key = f"{real.prefix}claim:id"
    await real.store.claim([claim])
    await real.store.renew([claim])
    assert lifetimes.claim_ms - 5_000 < await real.client.pttl(key) <= lifetimes.claim_ms
    await real.store.mark([(claim, "dead")])
    assert lifetimes.dead_ms - 5_000 < await real.client.pttl(key) <= lifetimes.dead_ms


async def test_an_evicting_server_is_refused(real: RedisBench) -> None:
    """A policy that may evict claims is a fault of the configuration, with its remedy (field case 24)."""
    await real.store.check_server()

    async def evicting(section: str) -> dict[str, str]:
        return {"maxmemory_policy": "allkeys-lru", "redis_version": "6.0.9"}

    real.store._client.info = evicting  # type: ignore[union-attr, method-assign]
    with pytest.raises(ConfigError) as raised:
        await real.store.check_server()
    assert len(raised.value.faults) == 2
    assert "noeviction" in raised.value.faults[0]


async def test_an_unreachable_server_is_unavailable_and_names_no_secret() -> None:
    """Neither address nor password appears in the error."""
    store = Store("redis://user:hunter2@127.0.0.1:1/0", "n", timeout_s=0.2)
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    await store.close()


def test_every_error_of_redis_is_mapped() -> None:
    """Whatever the client library can raise becomes ours, and quotes nothing it was given."""
    kinds = [kind for _, kind in inspect.getmembers(redis.exceptions, inspect.isclass) if issubclass(kind, Exception)]
    assert len(kinds) > 20
    for kind in kinds:
        error = kind.__new__(kind)
        error.args = ("secret-prompt at redis://:hunter2@host",)
        assert isinstance(error, REDIS_ERRORS), f"{kind} would pass unmapped"
        mapped = map_error(error)
        assert isinstance(mapped, StoreUnavailable)
        assert "secret" not in str(mapped)
        assert "hunter2" not in str(mapped)
    assert isinstance(map_error(redis.exceptions.ResponseError("HEADRACELOST another epoch")), StoreLost)
