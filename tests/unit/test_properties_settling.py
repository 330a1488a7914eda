"""What is settled, whatever it is and whatever the broker refuses: one end for each, of a size the topics take, and handed over whole."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.config import TopicNames
from headrace.decode import decode_retry
from headrace.envelope import Attempt, Header, Job, Position, Record, Request, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.guard.handover import dump_outcome, load_outcome
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Duplicate, Outcome, Output, Retry, Settlement
from headrace.outputs import Outputs, size_of
from headrace.refusals import Prepared, Refusal, sort_refused
from headrace.trail import COUNT_MAX, LAST_ATTEMPTS, TIME_MAX_MS

TOPICS = TopicNames()
NOW = 1_800_000_000_000
FEWER = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)  # of some tens of kilobytes each
LIMIT = 40_000  # less than the room for headers that any topic of ours has

text = st.text(st.characters(codec="utf-8"), max_size=60)
names = st.none() | text.filter(bool)
times = st.integers(0, TIME_MAX_MS)
attempts = st.lists(st.builds(Attempt, st.none() | st.sampled_from([c.value for c in ErrorClass]), times, text), max_size=20).map(tuple)
failures = st.builds(
    Failure, st.sampled_from(ErrorClass), text, code=names, status_code=st.none() | st.integers(100, 599), retry_after_ms=st.none() | times,
    called=st.booleans(), should_retry=st.none() | st.booleans(), provider=names, model=names,
)  # fmt: skip
json_objects = st.dictionaries(
    text, st.none() | st.booleans() | text | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False), max_size=4
)
responses = st.builds(
    Response, json_objects.map(orjson.dumps) | json_objects, st.integers(200, 299), names, names, names, names, st.none() | json_objects
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, responses, attempts, times, times),
    st.builds(Degraded, responses, failures, attempts, times, times),
    st.builds(Retry, failures, attempts, times, times, times),
    st.builds(Deferred, times, text, st.booleans()),
    st.builds(Dead, failures, times, attempts, times, st.booleans(), st.booleans()),
    st.builds(Dropped, failures, times),
)
headers = st.lists(st.tuples(text, st.none() | st.binary(max_size=40)), max_size=6)
positions = st.builds(Position, st.text("ab.-_", min_size=1, max_size=20), st.integers(0, 99), st.integers(0, 2**63 - 1))


parts = st.sampled_from([{part} for part in ("key", "value", "headers", "metadata")] + [set(), {"key", "value", "headers", "metadata"}])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any job: a request, or bytes that are none; some part of it is long, or all, or none."""
    long = draw(parts)
    held: list[Header] = draw(headers) + ([("long", b"x" * 60_000)] if "headers" in long else [])
    value = b"v" * 120_000 if "value" in long else draw(st.binary(max_size=40))
    key = b"k" * 9_000 if "key" in long else draw(st.none() | st.binary(max_size=9))
    record = Record(TOPICS.main, 1, draw(st.integers(0, 9)), 1, key, value, held, draw(times))
    counts = st.integers(0, COUNT_MAX)
    trail = Trail(draw(positions), draw(counts), draw(counts), attempts=draw(attempts)[:LAST_ATTEMPTS])
    if "metadata" not in long and draw(st.booleans()):
        return Job(record, trail)
    metadata = {"long": "\x01" * 60_000} if "metadata" in long else draw(st.none() | st.dictionaries(text, text, max_size=3))
    request = Request(request_id="r-1", body=draw(json_objects), agent_id=draw(text.filter(bool)), channel="c" * 256, metadata=metadata)
    return Job(record, trail, "r-1", "f" * 24, request)


@given(outcomes)
def test_an_outcome_is_handed_over_whole(outcome: Outcome) -> None:
    """Whatever a handler or a provider put into it, the new owner reads what the old one wrote, and writes the same records."""
    again = load_outcome(dump_outcome(outcome))
    assert again == outcome
    job = Job(Record("t", 0, 0, 1, b"k", b"{}", [], NOW), Trail(Position("t", 0, 0)), "r-1", "f", Request(request_id="r-1", body={}))
    outputs = Outputs(TOPICS, {})
    assert outputs.of(Settlement(job, again)) == outputs.of(Settlement(job, outcome))


@FEWER
@given(jobs(), failures, attempts)
def test_what_is_cut_fits_and_what_is_told_fits(job: Job, failure: Failure, spent: tuple[Attempt, ...]) -> None:
    """A dead letter that was cut and its notice are within their topics' limits, however long key, value, headers, metadata and messages are."""
    outputs = Outputs(TOPICS, {TOPICS.dlq: LIMIT, TOPICS.results: LIMIT})
    letter, notice = outputs.of(Settlement(job, Dead(failure, NOW, spent), cut=True))
    assert size_of(letter) <= LIMIT
    assert size_of(notice) <= LIMIT
    flagged = dict(letter.headers).get("headrace_cut")
    assert flagged is not None or (letter.key, letter.value) == (job.record.key, job.record.value)
    assert (job.record.value or b"").startswith(letter.value or b"")
    (repeated,) = outputs.of(Settlement(job, Duplicate("completed", NOW, NOW)))
    assert size_of(repeated) <= LIMIT


@FEWER
@given(st.lists(st.tuples(jobs(), outcomes), min_size=1, max_size=4), st.data())
def test_refusals_come_to_an_end(made: list[tuple[Job, Outcome]], data: st.DataObject) -> None:
    """Whatever the broker refuses, and however often: each of a batch goes on, is tried alone or is held, none twice; alone it ends within three refusals."""
    outputs = Outputs(TOPICS, {})
    group = []
    for number, (job, outcome) in enumerate(made):
        if job.request is None and isinstance(outcome, (Completed, Degraded)):
            outcome = Deferred(NOW, "x")  # noqa: PLW2901  only a request is answered
        settlement = Settlement(job._replace(record=job.record._replace(offset=number)), outcome)
        group.append(Prepared(settlement, outputs.of(settlement)))
    count = sum(len(prepared.outputs) for prepared in group)
    kinds = st.sampled_from(["size", "record", "topic"]).map(lambda kind: Refusal(kind, "no"))  # type: ignore[arg-type]
    refused = data.draw(st.dictionaries(st.integers(0, count - 1), kinds, min_size=1)) if count else {}
    found = sort_refused(group, refused)
    ends = [p.settlement for p in found.together] + found.alone + [s for s, _ in found.held]
    assert sorted(s.job.record.offset for s in ends) == list(range(len(made)))
    for settlement in found.alone:
        left = settlement
        for _ in range(3):
            kind = data.draw(st.sampled_from(["size", "record"]))
            again = sort_refused([Prepared(left, outputs.of(left))], {0: Refusal(kind, "no")})
            if again.held:
                break
            (left,) = again.alone
        else:
            raise AssertionError(f"not held after three refusals: {left}")


@given(jobs(), failures, attempts, times, times)
def test_a_request_comes_back_from_the_retry_topic_as_it_went(
    job: Job, failure: Failure, spent: tuple[Attempt, ...], due_ms: int, elapsed_ms: int
) -> None:
    """Key, value and headers untouched, the trail one hop and one call further, whatever either holds."""
    value: bytes = orjson.dumps({"request_id": "r-1", "prompt": "x"})
    job = job._replace(record=job.record._replace(value=value))
    (output,) = Outputs(TOPICS, {}).of(Settlement(job, Retry(failure, spent, due_ms, elapsed_ms, NOW)))
    assert (output.key, output.value) == (job.record.key, value)
    back = decode_retry(Record(TOPICS.retry, 0, 0, 1, output.key, output.value, output.headers, NOW))
    assert back.request is not None
    assert (back.trail.origin, back.trail.next_retry_at_ms) == (job.trail.origin, due_ms)
    assert back.trail.hop == min(job.trail.hop + 1, COUNT_MAX)
    assert back.trail.retry_count == min(job.trail.retry_count + 1, COUNT_MAX)
    assert [h for h in output.headers if not h[0].startswith("headrace_")] == [
        h for h in job.record.headers if not h[0].startswith("headrace_")
    ]
    assert _lasting(back.trail.attempts) == _lasting((*job.trail.attempts, *spent))[-len(back.trail.attempts) or LAST_ATTEMPTS * 3 :]


def _lasting(made: Any) -> list[tuple[str | None, int, str]]:
    return [(one.error_class, one.latency_ms, one.provider) for one in made]


def test_an_output_is_measured_from_above() -> None:
    """What is said to fit does: names of many bytes a character count as such."""
    output = Output("t", b"k", b"v", [("ü" * 100, b"x" * 10)] * 50)
    assert size_of(output) >= 50 * 210
