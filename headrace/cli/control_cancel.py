"""`headrace cancel`: requests that are to end without a call. A dry run until --execute."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import orjson
import typer

from headrace.claims import Lifetimes
from headrace.cli import control_options as options
from headrace.cli.dlq_options import moment
from headrace.config import Settings
from headrace.controls.controls import told
from headrace.controls.entry import Entry, Scope
from headrace.dlq.console import iso
from headrace.errors import Exit, Refused
from headrace.instrument.log import LogHook, configure
from headrace.loading import load
from headrace.plural import counted
from headrace.store import Store

_STATES: Mapping[str | None, tuple[str, str]] = {
    None: ("unknown", "not met by a lane yet, or never sent: dead as soon as one meets it"),
    "w": ("waiting", "wait for a retry: dead when it is due"),
    "c": ("claimed", "in a lane now: dead if their call has not begun, else the answer is settled"),
    "a": ("answered", "answered, and on their way to be settled: no effect"),
    "d": ("dead", "dead already: no effect, but a replay of them would be cancelled"),
    "s": ("completed", "completed: no effect"),
}
_NO_EFFECT = frozenset({"a", "s"})


def cancel(
    ids: options.Ids = None,
    *,
    file: options.File = None,
    agent: options.Agent = None,
    channel: options.Channel = None,
    model: options.Model = None,
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="For how long it stands; by default as long as a request can live.")
    ] = None,
    reason: options.Reason = options.NO_WHY,
    by: options.By = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this, only say what it would mean.")] = False,
    json: options.Json = False,
) -> None:
    """End requests without a call, as dead letters of class `cancelled`. A dry run until --execute.

    Ids stay cancelled until `headrace resume --cancelled`, also if they are sent again. By agent, channel or model
    (together: all of them must fit) it is what had been sent before this moment; what is sent later goes on. What is in
    flight is answered and settled, what is completed stays so.

    Exit codes: 0 done, or a dry run; 3 nothing of it can be cancelled any more; 2 nothing is named; 5 there are too many
    orders; 1 Redis or, by agent, channel or model, Kafka cannot be reached.
    """
    settings = load()
    scope = options.scope_of(settings, agent=agent, channel=channel, model=model)
    named = options.ids_of(ids, file)
    if bool(named) == (scope != Scope()):
        raise typer.BadParameter("say which: ids or --file, or else --agent, --channel, --model")
    who, why = options.who(by), options.why(reason)
    configure()
    now_ms, states = options.with_store(settings, lambda store: _asked(store, named))
    until_ms = moment(span, now_ms, "--for", ahead=True) or now_ms + Lifetimes().claim_ms
    if until_ms <= now_ms:
        raise typer.BadParameter("lies in the past", param_hint="--for")
    if named:
        order = Entry("ids", Scope(), who, why, now_ms, until_ms, name=f"{now_ms:x}-{secrets.token_hex(3)}")
        code = _of_ids(settings, order, named, states, execute=execute, json=json)
    else:
        order = Entry("cancel", scope, who, why, now_ms, until_ms, before=_ends(settings))
        code = _of_scope(settings, order, execute=execute, json=json)
    raise typer.Exit(code)


async def _asked(store: Store, ids: Sequence[str]) -> tuple[int, list[str | None]]:
    return await store.time_ms(), await store.orders.states(ids)


def _ends(settings: Settings) -> dict[str, int]:
    """Behind the last record of every partition where a request can have begun. Raises KafkaUnavailable."""
    from headrace.log import end_offsets

    topics = (settings.topics.main, settings.topics.retry)
    return {f"{topic}/{partition}": end for topic in topics for partition, end in end_offsets(settings, topic, end="high").items()}


def _of_ids(settings: Settings, order: Entry, ids: list[str], states: list[str | None], *, execute: bool, json: bool) -> Exit:
    counts = Counter(state if state in _STATES else "c" for state in states)
    wanted = [request_id for request_id, state in zip(ids, states, strict=True) if state not in _NO_EFFECT]
    _say_states(counts, json=json)
    if not wanted:
        typer.echo("nothing of it can be cancelled any more", err=True)
        return Exit.NOTHING
    if not execute:
        return _dry()

    async def work(store: Store) -> int:
        await _put(store, order)
        return await store.orders.cancel(wanted, order.name, (order.until_ms or 0) - order.since_ms)

    done = options.with_store(settings, work)
    LogHook()("cancelled_by_operator", {**told(order), "about": counted(done, "id")})
    _say_order(order, counted(done, "id"), json=json)
    return Exit.DONE


def _of_scope(settings: Settings, order: Entry, *, execute: bool, json: bool) -> Exit:
    if not execute:
        if json:
            _line({"action": "would cancel", "scope": _named(order.scope), "before": dict(order.before)})
        else:
            sys.stdout.write(f"would cancel: what {order.scope} had sent up to now and no lane has called yet\n")
        return _dry()
    options.with_store(settings, lambda store: _put(store, order))
    LogHook()("cancelled_by_operator", told(order))
    _say_order(order, f"what {order.scope} had sent before now", json=json)
    return Exit.DONE


async def _put(store: Store, order: Entry) -> None:
    if not await store.orders.put(order):
        raise Refused("there are 1,000 orders already; take back what is over (`headrace status` lists them)")


def _say_states(counts: Counter[str | None], *, json: bool) -> None:
    for state, (name, meaning) in _STATES.items():
        if not counts[state]:
            continue
        if json:
            _line({"state": name, "ids": counts[state], "effect": meaning})
        else:
            sys.stdout.write(f"{counts[state]:>9,}  {meaning}\n")


def _say_order(order: Entry, what: str, *, json: bool) -> None:
    until = iso(order.until_ms or 0)
    if json:
        said = {"action": "cancelled", "scope": _named(order.scope), "what": what, "by": order.who, "reason": order.why, "until": until}
        _line(said)
    else:
        sys.stdout.write(f"cancelled: {what}, until {until}, by {order.who}: {order.why}\n")


def _dry() -> Exit:
    typer.echo("dry run: nothing was cancelled; --execute does it", err=True)
    return Exit.DONE


def _named(scope: Scope) -> dict[str, str]:
    return {name: value for name, value in scope._asdict().items() if value is not None}


def _line(fields: Mapping[str, object]) -> None:
    sys.stdout.write(orjson.dumps(dict(fields)).decode() + "\n")
