"""The log: what an operator reads, a line per event."""

from __future__ import annotations

import contextvars
import io
import logging
import re
from collections.abc import Iterator

import orjson
import pytest
import structlog

from headrace.errors import ConfigError
from headrace.instrument.about import about
from headrace.instrument.log import LogHook, configure, summarised
from headrace.instrument.requests import BURST, Requests
from headrace.process import main
from headrace.tally import End, Tally

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure(stream=stream, json=True)
    yield stream
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in out.getvalue().splitlines()]


def test_partitions_are_summarised() -> None:
    """Runs of a topic's partitions are written as a range, in the order of their numbers, each topic once."""
    names = [*(f"main/{n}" for n in (10, 2, 0, 1, 3, 7)), "retry/0"]
    assert summarised(names) == "main: 0-3 7 10, retry: 0"
    assert summarised([]) == ""


def test_an_assignment_of_nothing_is_no_line(out: io.StringIO) -> None:
    """Assigned and revoked are told only where there is a partition, and then in one short field."""
    hook = LogHook()
    hook("assigned", {"group": "g", "partitions": []})
    hook("revoked", {"group": "g", "partitions": [], "drained": True})
    hook("assigned", {"group": "g", "partitions": ["main/0", "main/1"]})
    (line,) = lines(out)
    assert (line["event"], line["partitions"]) == ("assigned", "main: 0-1")


def test_a_pause_for_a_stop_is_no_warning(out: io.StringIO) -> None:
    """A lane that pauses because it stops says so as info; any other reason is a warning."""
    hook = LogHook()
    hook("lane_paused", {"group": "g", "reason": "stop"})
    hook("lane_paused", {"group": "g", "reason": "every target is shut"})
    assert [line["level"] for line in lines(out)] == ["info", "warning"]


def test_times_have_milliseconds(out: io.StringIO) -> None:
    """The time of a line is RFC 3339 in UTC with three digits of a second."""
    LogHook()("started", {})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(lines(out)[0]["timestamp"]))


def noted(count: int, outcome: str = "dead", *, trace: str | None = TRACE) -> dict[str, object]:
    ends = [End(outcome, "timeout", f"main/0/{n}", f"r-{n}", trace, 3, "p", 40) for n in range(count)]
    return {"lane": "main", "counts": {}, "tally": Tally(ends=ends, unnoted={outcome: 5}), "seconds": 0.1}


def test_a_line_about_a_request_names_it_and_its_trace(out: io.StringIO) -> None:
    """Id, trace, class, attempt, provider and latency; what is not known is left out."""
    Requests()("settled", noted(1))
    Requests()("settled", noted(1, trace=None))
    Requests()("settled", noted(1, "retry"))
    first, second = lines(out)
    told = {
        "request_id": "r-0",
        "trace_id": TRACE,
        "error_class": "timeout",
        "attempt": 3,
        "provider": "p",
        "latency_ms": 40,
        "lane": "main",
    }
    assert told.items() <= first.items()
    assert (first["event"], first["level"]) == ("request_dead", "info")
    assert "trace_id" not in second


def test_an_outage_leaves_few_lines_and_a_count(out: io.StringIO) -> None:
    """10,000 dead requests in a second are as many lines as the bucket holds; the next one says how many were not said."""
    now = 0.0
    requests = Requests(now_s=lambda: now)
    for _ in range(500):
        requests("settled", noted(20))
    assert len(lines(out)) == BURST
    now = 1.0
    requests("settled", noted(1))
    said = lines(out)
    assert len(said) == BURST + 1
    assert sum(int(str(line.get("unsaid", 0))) for line in said) + BURST == 500 * 25, "every one is said or counted"


def test_lines_of_the_standard_library_s_loggers_look_like_ours(out: io.StringIO) -> None:
    """A handler logs as its author is used to, and the line names its request; in its threads too, and no longer than it works."""
    log = logging.getLogger("mypackage.summarise")
    with about("r-1", f"00-{TRACE}-b7ad6b7169203331-01", 2):
        log.info("fetched %d pages", 3)
        contextvars.copy_context().run(log.warning, "slow")
        with about("r-2", "not a trace", 1):
            log.info("inner")
        log.info("outer")
    log.info("after")
    log.debug("never")
    assert [(line["event"], line.get("request_id"), line.get("trace_id"), line.get("attempt")) for line in lines(out)] == [
        ("fetched 3 pages", "r-1", TRACE, 2), ("slow", "r-1", TRACE, 2), ("inner", "r-2", TRACE, 1), ("outer", "r-1", TRACE, 2), ("after", None, None, None),
    ]  # fmt: skip
    assert lines(out)[0]["logger"] == "mypackage.summarise"


def test_an_exception_in_a_foreign_line_keeps_its_text_to_itself(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may quote a record: where it happened and its type are told."""
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    error = ValueError("bait")
    logging.getLogger("mypackage").error("failed", exc_info=error)
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: %r", error, exc_info=error)
    assert "bait" not in out.getvalue()
    assert [line["event"] for line in lines(out)] == ["failed", "Task exception was never retrieved"]
    assert all("ValueError" in str(line["exception"]) for line in lines(out))


@pytest.mark.parametrize(
    ("env", "expected"),
    [({}, 2), ({"HEADRACE_LOG_LEVEL": "warning"}, 1), ({"HEADRACE_LOG_LEVEL": " ERROR "}, 0), ({"HEADRACE_LOG_LEVEL": ""}, 2)],
)
def test_the_environment_sets_the_level(env: dict[str, str], expected: int) -> None:
    """And what is given beats it."""
    stream = io.StringIO()
    configure(stream=stream, json=True, env=env)
    LogHook()("started", {})
    LogHook()("topics_differ", {})
    assert len(lines(stream)) == expected
    given = io.StringIO()
    configure(stream=given, json=True, level="info", env=env)
    LogHook()("started", {})
    assert len(lines(given)) == 1
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("env", "as_json"), [({}, True), ({"HEADRACE_LOG_FORMAT": "json"}, True), ({"HEADRACE_LOG_FORMAT": "console"}, False)]
)
def test_the_environment_sets_the_format(env: dict[str, str], *, as_json: bool) -> None:
    """What is no terminal gets JSON, unless it is told otherwise."""
    stream = io.StringIO()
    configure(stream=stream, env=env)
    LogHook()("started", {"lanes": ["main"]})
    assert stream.getvalue().startswith("{") == as_json
    structlog.reset_defaults()


def test_what_the_environment_gets_wrong_is_told_at_once() -> None:
    """Both, by name, with what is possible."""
    with pytest.raises(ConfigError) as refused:
        configure(stream=io.StringIO(), env={"HEADRACE_LOG_LEVEL": "loud", "HEADRACE_LOG_FORMAT": "xml"})
    assert [fault.split(":")[0] for fault in refused.value.faults] == ["HEADRACE_LOG_FORMAT", "HEADRACE_LOG_LEVEL"]


def test_a_worker_does_not_start_with_a_level_that_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with the variable's name, before anything is read."""
    monkeypatch.setenv("HEADRACE_LOG_LEVEL", "loud")
    assert main("main") == 2
    assert "HEADRACE_LOG_LEVEL: 'loud' is none of debug, info, warning, error" in capsys.readouterr().err
