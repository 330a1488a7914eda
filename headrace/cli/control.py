"""`headrace pause|resume`: what may be called, said by an operator, for the whole fleet. What it means for a record is `controls`'."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import orjson
import typer

from headrace.cli import control_options as options
from headrace.cli.dlq_options import moment
from headrace.controls.controls import told
from headrace.controls.entry import Entry, Scope
from headrace.dlq.console import iso
from headrace.dlq.display import safe
from headrace.errors import Exit, Refused
from headrace.instrument.log import LogHook, configure
from headrace.loading import load
from headrace.plural import counted
from headrace.store import Store


def pause(
    ids: options.Ids = None,
    *,
    provider: options.Provider = None,
    model: options.Model = None,
    agent: options.Agent = None,
    channel: options.Channel = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything: no model is called by anybody.")] = False,
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="For how long: 30m, 2h, or until an RFC 3339 time; else until `resume`.")
    ] = None,
    reason: options.Reason = options.NO_WHY,
    by: options.By = None,
    json: options.Json = False,
) -> None:
    """Call nothing of a provider, a model, an agent, a channel, or of some requests, until it is resumed or its time is over.

    Every worker knows within two seconds. Calls in flight end; what waits spends no attempt. A pause of the same replaces
    the one before. It acts at once, also while no worker runs.

    Exit codes: 0 done; 2 nothing, or something unknown, is named; 5 there are too many orders; 1 Redis cannot be reached.
    """
    settings = load()
    scope = options.scope_of(settings, provider=provider, model=model, agent=agent, channel=channel)
    scopes = _scopes(scope, options.ids_of(ids, None), everything=everything)
    _unmixed(scope)
    who, why = options.who(by), options.why(reason)

    async def work(store: Store) -> list[Entry]:
        now_ms = await store.time_ms()
        until_ms = moment(span, now_ms, "--for", ahead=True)
        if until_ms is not None and until_ms <= now_ms:
            raise typer.BadParameter("lies in the past", param_hint="--for")
        entries = [Entry("pause", one, who, why, now_ms, until_ms) for one in scopes]
        for entry in entries:
            if not await store.orders.put(entry):
                raise Refused("there are 1,000 orders already; resume what is over (`headrace status` lists them)")
        return entries

    _told("paused", options.with_store(settings, work), json=json)


def resume(
    ids: options.Ids = None,
    *,
    provider: options.Provider = None,
    model: options.Model = None,
    agent: options.Agent = None,
    channel: options.Channel = None,
    file: options.File = None,
    everything: Annotated[bool, typer.Option("--all", help="Every pause there is; with --cancelled every cancellation.")] = False,
    cancelled: Annotated[bool, typer.Option("--cancelled", help="Take back cancellations instead of pauses.")] = False,
    by: options.By = None,
    json: options.Json = False,
) -> None:
    """End a pause, named as it was paused; with --cancelled, let cancelled requests live again that no lane has met yet.

    What waited comes back within a minute, each in its turn. A pause because of a quota or a key is none of these: it ends
    by a probe. It acts at once.

    Exit codes: 0 done; 3 nothing of that name is paused; 2 nothing, or something unknown, is named; 1 Redis cannot be reached.
    """
    settings = load()
    scope = options.scope_of(settings, provider=provider, model=model, agent=agent, channel=channel)
    named = options.ids_of(ids, file)
    scopes = _scopes(scope, named, everything=everything)
    kinds, meant = ("cancel", "ids") if cancelled else ("pause",), set(scopes)

    async def work(store: Store) -> tuple[list[Entry], int]:
        now_ms = await store.time_ms()
        standing = [entry for entry in await store.orders.entries() if entry.kind in kinds and entry.stands(now_ms)]
        ended = standing if everything else [entry for entry in standing if entry.kind != "ids" and entry.scope in meant]
        if ended:
            await store.orders.drop([entry.key for entry in ended])
        return ended, await store.orders.uncancel(named) if cancelled and named else 0

    ended, freed = options.with_store(settings, work)
    if not ended and not freed:
        typer.echo(f"nothing of that is {'cancelled' if cancelled else 'paused'}; `headrace status` lists what is", err=True)
        raise typer.Exit(Exit.NOTHING)
    now_by = [dataclasses.replace(entry, who=options.who(by)) for entry in ended]
    _told("no longer cancelled" if cancelled else "resumed", now_by, json=json, ids=freed)


def _scopes(scope: Scope, ids: Sequence[str], *, everything: bool) -> list[Scope]:
    """What is meant, one way of saying it at a time. Raises typer.BadParameter."""
    if sum((scope != Scope(), bool(ids), everything)) != 1:
        raise typer.BadParameter("say what: --provider, --model, --agent, --channel, ids, or --all; ids and --all stand alone")
    return [Scope(request_id=one) for one in ids] if ids else [scope]


def _unmixed(scope: Scope) -> None:
    if scope.of_requests and (scope.provider is not None or scope.model is not None):
        raise typer.BadParameter("a pause is of whom to call (--provider, --model) or of who asks (--agent, --channel); pause each")


def _told(what: str, entries: Sequence[Entry], *, json: bool, ids: int = 0) -> None:
    """The order on stdout, and as a line of the log on stderr."""
    configure()
    tell = LogHook()
    for entry in entries:
        if what == "paused":
            tell("paused_by_operator", told(entry))
        elif what == "resumed":
            tell("resumed_by_operator", told(entry))
        else:
            tell("cancellation_ended", told(entry))
        _say(what, entry, json=json)
    if ids:
        sys.stdout.write(orjson.dumps({"action": what, "ids": ids}).decode() + "\n" if json else f"{what}: {counted(ids, 'id')}\n")


def _say(what: str, entry: Entry, *, json: bool) -> None:
    until = None if entry.until_ms is None else iso(entry.until_ms)
    if json:
        named = {name: value for name, value in entry.scope._asdict().items() if value is not None}
        facts = {"action": what, "scope": named, "by": entry.who, "reason": entry.why, "since": iso(entry.since_ms), "until": until}
        sys.stdout.write(orjson.dumps(facts).decode() + "\n")
        return
    ends = f", until {until}" if what == "paused" and until else ", until it is resumed" if what == "paused" else ""
    sys.stdout.write(safe(f"{what}: {entry.scope}{ends}, by {entry.who}: {entry.why}", 1024) + "\n")
