"""Field cases that need no broker, and the table of all of them held to the tests."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.config import PauseSettings
from headrace.errors import ErrorClass, Failure
from headrace.llm import Target
from headrace.pauses import MODELS, Pauses
from headrace.shared_pauses import MODEL_ALERTS_MS, SharedPauses

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "field-cases.md"
KINDS = range(1, 28)
KEY = Target("openai", "gpt-4o", "cafe0123")
QUOTA = Failure(ErrorClass.QUOTA_EXHAUSTED, "spent", status_code=429, called=True)
NO_KEY = Failure(ErrorClass.AUTH, "refused", status_code=401, called=True)
UNGRANTED = Failure(ErrorClass.AUTH, "not for you", status_code=403, called=True)

_ROW = re.compile(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[tuple[int, str]]:
    """The numbers of the table, each with its cell of tests."""
    return [(int(found[1]), found[4]) for found in _ROW.finditer(TABLE.read_text())]


def test_every_kind_is_in_the_table_once() -> None:
    """The 27 kinds, in order, none left out."""
    assert [number for number, _ in rows()] == list(KINDS)


def test_every_test_of_the_table_exists() -> None:
    """Each row names at least one test, and each name is that of a test in that file."""
    for number, cell in rows():
        named = _TEST.findall(cell)
        assert named, f"{number}: no test"
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{number}: no {name} in {path}"


def test_every_test_named_for_a_kind_is_in_its_row() -> None:
    """`test_field_NN_…` stands in row NN: a case that is written is also told of."""
    listed = {(number, name) for number, cell in rows() for _, name in _TEST.findall(cell)}
    written = {
        (int(found[2]), found[1])
        for path in (ROOT / "tests").rglob("test_field_*.py")
        for found in re.finditer(r"^(?:async )?def (test_field_(\d\d)_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert written - listed == set()


class Time:
    """A clock that is set."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms


class OneRedis:
    """Where a fleet shares its pauses; they end as in Redis."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._fields: dict[str, tuple[int, str]] = {}

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool:
        first = self._fields.get(key, (0, ""))[0] <= self._time.ms
        self._fields[key] = (self._time.ms + ttl_ms, text)
        return first

    async def pauses(self) -> Mapping[str, str]:
        return {key: text for key, (until_ms, text) in self._fields.items() if until_ms > self._time.ms}


class Fleet:
    """Processes that share one Redis and one clock; `told` is what any of them told."""

    def __init__(self, size: int) -> None:
        self.time = Time()
        self.redis = OneRedis(self.time)
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.pauses = [Pauses(PauseSettings(), [KEY], tell=self._tell) for _ in range(size)]
        self.shares = [SharedPauses(one, self.redis, self.time, tell=self._tell) for one in self.pauses]  # type: ignore[arg-type]  # a clock of its own

    def _tell(self, name: str, fields: Mapping[str, Any]) -> None:
        self.told.append((name, fields))

    def alerts(self) -> list[Mapping[str, Any]]:
        return [fields for name, fields in self.told if name == "alert"]

    async def exchange(self) -> None:
        for share in self.shares:
            await share.exchange()


async def test_field_26_two_faults_of_a_key_in_turn_alert_once() -> None:
    """Quota and credentials in turn, 10,000 times over hours and three processes: one alert, and one event for each pause, not for each fault."""
    fleet = Fleet(3)
    for number in range(10_000):
        fleet.pauses[number % 3].shut(KEY, (QUOTA, NO_KEY)[number % 2], fleet.time.ms)
        fleet.time.ms += 1_000
        if number % 10 == 0:
            await fleet.exchange()
    assert len(fleet.alerts()) == 1
    assert len(fleet.told) < 100, "a pause of up to 15 minutes has one event a process"


async def test_field_27_ten_thousand_models_keep_the_pauses_bounded() -> None:
    """10,000 random model names, each refused to our key: what is remembered, what is shared and what is told stay bounded, and are counted."""
    fleet, chance, exchanges, every_ms = Fleet(2), random.Random(27), 100, 5_000
    for number in range(exchanges):
        for _ in range(100):
            target = KEY._replace(model=f"model-{chance.getrandbits(64):x}")
            fleet.pauses[number % 2].shut(target, UNGRANTED, fleet.time.ms)
        await fleet.exchange()
        fleet.time.ms += every_ms
    assert all(len(pauses.snapshot(0)) <= MODELS for pauses in fleet.pauses)
    assert len(await fleet.redis.pauses()) <= len(fleet.shares) * MODELS
    assert all(len(share._known) <= (len(fleet.shares) + 1) * MODELS for share in fleet.shares)
    alerts = fleet.alerts()
    assert 0 < len(alerts) <= len(fleet.shares) * (exchanges * every_ms // MODEL_ALERTS_MS + 1)
    assert sum(alert["models"] for alert in alerts) > MODELS, "the rest is counted"
    assert fleet.pauses[0].may_call(KEY, fleet.time.ms), "the key itself is open"
