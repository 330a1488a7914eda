"""The auditor over a test's bench: every promise of DESIGN §1, or an AssertionError that lists what is broken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from headrace.audit import Call, Sample, Told, Verdict, audit
from headrace.config import Settings
from headrace.local.stub import StubLLM
from tests.support.bench import Bench
from tests.support.history import History

SHOWN = 20


async def audited(
    bench: Bench,
    stub: StubLLM | None,
    history: History,
    *,
    settled: bool = True,
    lanes: Sequence[str] = ("main", "retry"),
    settings: Settings | None = None,
) -> Verdict:
    """Read the bench's topics, the committed offsets, the stub's calls and the history, and judge them by every rule.

    `settled`: nothing may be on its way any more, and these lanes' topics have no lag; it waits for that a while first,
    since the end of a partition is committed a moment after its last record. Without a `stub`, calls are not judged.
    `settings` are the worker's, where they differ from the bench's in what an auditor has to know.
    """
    if settled:
        with contextlib.suppress(AssertionError):  # the verdict says so better
            await bench.until_drained(lanes, 20)
    calls = None if stub is None else [Call(e.request_id, e.attempt, e.wall_ms, e.status) for e in stub.log]
    told = Told(
        bound=history.bound,
        settled=frozenset(getattr(bench.names, lane) for lane in lanes) if settled else None,
        produced=[event["request_id"] for event in history.of("produced")],
        samples=[Sample(event["topic"], event["partition"], event["offset"]) for event in history.of("committed")],
    )
    verdict = await asyncio.to_thread(audit, settings or bench.settings("http://127.0.0.1:1/v1"), calls=calls, told=told)
    history.note("audited", ids=verdict.ids, calls=verdict.calls, extra_calls=verdict.extra_calls, bound=verdict.bound)
    shown = "\n".join(map(str, verdict.violations[:SHOWN]))
    assert verdict.ok, f"{dict(verdict.broken)}; states {dict(verdict.states)}, open {dict(verdict.open_at)}; the first:\n{shown}"
    return verdict
