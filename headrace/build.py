"""What the lanes of one process share, checked and opened in order, and closed again however the process ends."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from headrace import topics
from headrace.claims import Lifetimes
from headrace.clock import Clock
from headrace.committed import Committed
from headrace.config import Settings
from headrace.controls import Controls
from headrace.dlq.alerts import build_alerts
from headrace.errors import ConfigError, StoreLost, StoreUnavailable
from headrace.handler import load_handler
from headrace.instrument import Tell, tell_all
from headrace.lane import Shared, calls_models, groups
from headrace.llm import Llm
from headrace.loading import keyless, missing_keys
from headrace.metrics.labels import LabelSets
from headrace.metrics.meters import Meters
from headrace.pauses import Pauses
from headrace.rebuild import CompletedResults
from headrace.recovery import Recovery
from headrace.shared_controls import SharedControls
from headrace.store import Store

ALERTS_S = 5.0


@asynccontextmanager
async def built(settings: Settings, lanes: Sequence[str], *, tell: Tell) -> AsyncIterator[Shared]:
    """config → checks → build. Raises ConfigError, with every fault of one kind, before anything is read."""
    calls = calls_models(lanes)
    meters = Meters(LabelSets(settings), lanes)
    tell = tell_all(meters, tell)
    handler = load_handler(settings.handler)
    if calls and (missing := missing_keys(settings)):
        raise ConfigError(missing)
    for note in keyless(settings) if calls else ():
        tell("key_not_set", {"note": note})
    facts = await asyncio.to_thread(topics.check, settings, parts=lanes)
    if facts.faults:
        raise ConfigError(list(facts.faults))
    for note in facts.notes:
        tell("topics_differ", {"note": note})
    async with AsyncExitStack() as opened:
        clock = Clock()
        store = Store(settings.redis.url.get_secret_value(), settings.namespace, lifetimes=_lifetimes(settings, facts))
        opened.push_async_callback(store.close)
        incarnation = secrets.token_hex(6)
        results = CompletedResults(settings, Committed(settings, groups(settings)), facts.partitions[settings.topics.main])
        recovery = Recovery(store, results, incarnation=incarnation, tell=tell)
        controls = Controls(tell=tell)
        shared_controls = SharedControls(controls, store.orders, clock, default_model=settings.providers[0].default_model, tell=tell)
        if calls:
            await _open(store, recovery, clock, settings, tell)
            await shared_controls.refresh()
        llm = Llm(settings.providers, pool=settings.limits.concurrency * 2, now_ms=clock.now_ms, models=settings.models, tell=tell)
        opened.push_async_callback(llm.close)
        pauses = Pauses(settings.pause, llm.targets, probe_lapse_ms=_longest_call_ms(settings), tell=tell, held=controls)
        llm.on_new_keys.append(pauses.configure)
        alerts = build_alerts(settings, tell=tell)
        alerts.start()
        opened.push_async_callback(alerts.close, ALERTS_S)
        yield Shared(
            settings=settings,
            incarnation=incarnation,
            store=store,
            recovery=recovery,
            clock=clock,
            llm=llm,
            pauses=pauses,
            controls=shared_controls,
            handler=handler,
            alerts=alerts,
            limits=facts.max_message_bytes,
            partitions=facts.partitions,
            retention_ms=facts.retention_ms,
            tell=tell,
            meters=meters,
        )


async def _open(store: Store, recovery: Recovery, clock: Clock, settings: Settings, tell: Tell) -> None:
    try:
        await store.open()
        await recovery.enter()
        clock.sync(await store.time_ms())
    except StoreLost as error:
        recovery.suspect(error)
    except StoreUnavailable as error:
        if settings.redis.on_outage == "pause":
            raise ConfigError([f"redis.url: {error}; or start without dedup: redis.on_outage: continue"]) from error
        tell("store_unavailable", {"error": str(error), "on_outage": "continue"})


def _lifetimes(settings: Settings, facts: topics.TopicFacts) -> Lifetimes:
    """Claims live as long as the topics keep what they are about."""
    return Lifetimes.within(
        results_ms=facts.retention_ms[settings.topics.results],
        retry_ms=facts.retention_ms[settings.topics.retry],
        longest_delay_ms=int(settings.limits.longest_delay_s * 1000),
    )


def _longest_call_ms(settings: Settings) -> int:
    """A probe that has not reported by then was lost with its call."""
    return int(max(provider.longest_s() for provider in settings.providers) * 1000) + 30_000
