"""Pauses that one process finds are the whole fleet's, and only the first alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import shared_pauses
from headrace.clock import Clock
from headrace.config import PauseSettings
from headrace.errors import ErrorClass, Failure
from headrace.llm import Target
from headrace.pauses import Pause, Pauses, Scope
from headrace.shared_pauses import SharedPauses

TARGET = Target("openai", "gpt-4o", "cafe0123")
QUOTA = Failure(ErrorClass.QUOTA_EXHAUSTED, "spent", status_code=429, called=True)


class OneRedis:
    """A store for pauses, as two processes see it."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool:
        first = key not in self.fields
        self.fields[key] = text
        return first

    async def pauses(self) -> Mapping[str, str]:
        return self.fields


def fleet(size: int) -> tuple[list[Pauses], list[SharedPauses], list[tuple[str, Mapping[str, Any]]]]:
    store, clock, told = OneRedis(), Clock(), list[tuple[str, Mapping[str, Any]]]()
    pauses = [Pauses(PauseSettings(), [TARGET]) for _ in range(size)]
    return pauses, [SharedPauses(p, store, clock, tell=lambda n, f: told.append((n, f))) for p in pauses], told


async def test_what_one_process_shuts_is_shut_for_all() -> None:
    """A process that never called the target knows after one exchange that it is shut."""
    (mine, other), (share_mine, share_other), _ = fleet(2)
    now_ms = Clock().now_ms()
    mine.shut(TARGET, QUOTA, now_ms)
    await share_mine.exchange()
    assert other.may_call(TARGET, now_ms)
    await share_other.exchange()
    assert not other.may_call(TARGET, now_ms)


async def test_a_fleet_alerts_once() -> None:
    """Three processes that run into the same spent quota tell it once, and name no key but its id."""
    pauses, shares, told = fleet(3)
    now_ms = Clock().now_ms()
    for one in pauses:
        one.shut(TARGET, QUOTA, now_ms)
    for share in (*shares, *shares):
        await share.exchange()
    assert [name for name, _ in told] == ["alert"]
    assert told[0][1]["provider"] == "openai"


async def test_rubbish_in_redis_pauses_nothing() -> None:
    """A field that is no pause is passed over."""
    (mine,), (share,), _ = fleet(1)
    share._store.fields |= {"a": "[]", "b": "not json", "c": '[["p","k",null],"soon",1]', "d": "{}"}
    await share.exchange()
    assert mine.may_call(TARGET, Clock().now_ms())


def test_a_pause_says_why_and_an_older_one_need_not() -> None:
    """Class and code of the failure travel with it, bounded; what an older version wrote is read without them."""
    why = Pause(Scope("p", "cafe0123", None), 5_000, 30_000, "quota_exhausted", "insufficient_quota")
    assert shared_pauses.parse(shared_pauses._dump(why)) == why
    plain = why._replace(error_class="", code="")
    assert shared_pauses._dump(plain) == '[["p","cafe0123",null],5000,30000]'
    assert shared_pauses.parse('[["p","cafe0123",null],5000,30000]') == plain
    bent = shared_pauses.parse('[["p","cafe0123",null],5000,30000,"' + "x" * 999 + '",{"a":1}]')
    assert bent is not None
    assert (len(bent.error_class), bent.code) == (64, "")
