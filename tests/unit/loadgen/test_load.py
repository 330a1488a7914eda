"""The load's schedule and mix: seeded, repeatable, and what was asked for."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice, pairwise
from typing import Any

import orjson
import pytest

from headrace.cli.load import _tell as tell
from headrace.config import Settings
from headrace.decode import decode
from headrace.envelope import Record
from headrace.errors import ConfigError, ErrorClass
from headrace.loadgen import Load, Mix, arrivals
from headrace.loadgen import run as running
from headrace.loadgen.figures import Figures, Times
from headrace.loadgen.spec import Size, Weighted, shares, zipf

FAULTS = {"bad_bytes": 0.05, "wrong_schema": 0.05, "expired": 0.05, "duplicate": 0.1, "broken": 0.05}
MIX = Mix("p", Size("uniform", 10, 500), zipf(5, 1.0), Weighted(("a", "b"), (3, 1)), Weighted(("high", "low"), (1, 1)), FAULTS, 100_000)


def test_constant_arrivals_are_even_and_poisson_ones_are_not() -> None:
    """Both keep the rate; both end with the duration or the count, whichever comes first."""
    assert list(arrivals("constant", 4, 1, duration_s=1.0)) == [0, 0.25, 0.5, 0.75]
    assert len(list(arrivals("constant", 4, 1, duration_s=1.0, count=2))) == 2
    due = list(arrivals("poisson", 100, 1, duration_s=100))
    assert due == sorted(due)
    assert 9_500 < len(due) < 10_500
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert 0.8 < (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean < 1.2  # of a Poisson process it is 1


def test_the_same_seed_sends_the_same() -> None:
    """Bytes and times; another seed sends others."""
    first, again = (list(islice(MIX.records(7), 500)) for _ in range(2))
    assert first == again
    assert first != list(islice(MIX.records(8), 500))
    assert list(arrivals("poisson", 5, 7, count=50)) == list(arrivals("poisson", 5, 7, count=50))


def test_each_fault_is_the_fault_it_says() -> None:
    """The lane's own decoder finds what each kind promises; shares, agents and channels are as asked."""
    records = list(islice(MIX.records(1), 4_000))
    kinds = Counter(planned.kind for planned in records)
    assert all(0.7 * share < kinds[kind] / len(records) < 1.3 * share for kind, share in FAULTS.items())
    good: set[bytes] = set()
    agents: Counter[str] = Counter()
    for planned in records:
        job = decode(Record("t", 0, 0, 0, planned.key, planned.value, (), 0))
        fault = job.fault.error_class if job.fault else None
        match planned.kind:
            case "bad_bytes":
                assert fault is ErrorClass.UNDECODABLE
            case "wrong_schema":
                assert (fault, job.request_id) == (ErrorClass.INVALID_REQUEST, (planned.key or b"").decode())
            case "duplicate":
                assert planned.value in good
            case _:
                assert job.request is not None
                assert job.request.request_id.encode() == planned.key
                assert (planned.kind == "expired") == (job.request.deadline_at is not None)
                prompt = job.request.body["messages"][0]["content"]
                assert ("[broken]" in prompt) == (planned.kind == "broken")
                assert 10 <= len(prompt) <= 500
                agents[job.request.agent_id] += 1
                good.add(planned.value)
    assert agents["agent-0"] > 3 * agents["agent-4"] > 0


def test_a_prompt_longer_than_the_text_and_one_beyond_the_topic() -> None:
    """Any size is met exactly, but for what the topic would not take."""
    for size in (1, 999_999):
        mix = Mix("p", Size("fixed", size), [1], Weighted(("c",), (1,)), Weighted(("low",), (1,)), {}, 500_000)
        planned = next(mix.records(1))
        assert len(orjson.loads(planned.value)["prompt"]) == min(size, 500_000)


@pytest.mark.parametrize("text", ["", "x", "0", "uniform:5", "uniform:9,3", "lognormal:0,1", "lognormal:400,9", "nan", "normal:1,2"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    """With the forms there are."""
    with pytest.raises(ConfigError, match="uniform:LOW,HIGH"):
        Size.parse(text)


def test_weights_and_shares_are_checked() -> None:
    """Unknown names, numbers that are none, and more than everything."""
    assert Weighted.parse("a=3, b", "--channels").weights == (3, 1)
    for text, match in (("a=x", "number"), ("a=-1", "number"), ("", "weight"), ("a=0", "weight")):
        with pytest.raises(ConfigError, match=match):
            Weighted.parse(text, "--channels")
    with pytest.raises(ConfigError, match="did you mean 'broken'"):
        shares("brokn=1", "--faults", list(FAULTS))
    with pytest.raises(ConfigError, match="in sum"):
        shares("broken=0.6,expired=0.6", "--faults", list(FAULTS))
    assert Size("lognormal", 400, 0.5).draw(random.Random(1)) > 0


def test_percentiles_are_of_what_was_there() -> None:
    """Exact, in milliseconds; none of nothing."""
    times = Times()
    assert times.percentiles() == {}
    for n in range(1000):
        times.add(n / 1000)
    assert times.percentiles() == {"p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0, "max": 999.0}


def test_a_client_that_is_full_delays_nothing_but_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is taken for a second the schedule goes on: what was due meanwhile counts as late from then, not from when it could go."""
    clock = [100.0]

    class Full:
        trouble = None

        def __init__(self, _settings: Settings, heard: Any) -> None:
            self._heard = heard

        def offer(self, _planned: Any, due_s: float) -> bool:
            if 100.5 <= clock[0] < 101.5:
                return False
            self._heard(due_s, None)
            return True

        def wait(self, for_s: float) -> None:
            clock[0] += max(for_s, 1e-6)

        def drain(self, _for_s: float) -> int:
            return 0

        def close(self) -> None:
            pass

    monkeypatch.setattr(running, "Sender", Full)
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    load = Load(Settings(), 10, follow=False, say=lambda *_: None)
    load.run(arrivals("constant", 10, 1, count=30), MIX.records(1))
    late = load.figures.late.percentiles()
    assert load.figures.offered.total() == 30
    assert late["p50"] < 10
    assert 900 < late["max"] <= 1010
    assert load.figures.taken.percentiles()["max"] == pytest.approx(late["max"], abs=5)


def test_ends_are_told_by_id_and_what_has_none_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Copies and bad bytes are in no end: what was sent and what ended would not add up without a word on them."""
    figures = Figures(10, unanswered=1, took_s=20)
    figures.offered.update(good=167, duplicate=33, bad_bytes=2)
    figures.ends.update(completed=166, duplicate=30)
    tell(figures, json=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "ends      166 completed; 1 id without one",
        "copies    33 sent, 30 notices of them read by then; they are not waited for",
        "no id     2 of bad_bytes: dead letters (undecodable), which are not followed",
    ]
