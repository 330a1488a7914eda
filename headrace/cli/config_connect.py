"""What only the broker and Redis can tell of a configuration. Nothing is changed, and no group is joined."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

import typer

from headrace.config import Settings
from headrace.errors import ConfigError, Exit, HeadraceError
from headrace.store import Store
from headrace.topics import check
from headrace.topics.groups import Groups
from headrace.topics.permissions import Permissions
from headrace.topics.rights import PARTS


def connected(settings: Settings, parts: Sequence[str]) -> Exit:
    """Ask both; a line on stdout for what is well, on stderr for each fault. The exit code of `config check`."""
    if unknown := [part for part in parts if part not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: no such part; known: {', '.join(PARTS)}", param_hint="--for")
    codes = [
        _asked("rights", lambda: _rights(settings, parts)),
        _asked("topics", lambda: _topics(settings)),
        _asked("redis", lambda: _redis(settings)),
    ]
    return next((code for code in (Exit.USAGE, Exit.ERROR) if code in codes), Exit.DONE)


def _asked(what: str, ask: Callable[[], str]) -> Exit:
    try:
        sys.stdout.write(f"{what}: {ask()}\n")
    except ConfigError as error:
        for fault in error.faults:
            sys.stderr.write(f"{what}: {fault}\n")
        return Exit.USAGE
    except HeadraceError as error:
        sys.stderr.write(f"{what}: {error}\n")
        return Exit.ERROR
    return Exit.DONE


def _rights(settings: Settings, parts: Sequence[str]) -> str:
    if missing := Permissions(settings).missing(parts):
        raise ConfigError(missing)
    return f"ok for {', '.join(parts)} (those on transactional ids cannot be asked for)"


def _topics(settings: Settings) -> str:
    facts = check(settings)
    if facts.faults:
        raise ConfigError(list(facts.faults))
    for note in facts.notes:
        sys.stderr.write(f"topics: note: {note}\n")
    return f"ok at {settings.kafka.bootstrap}; {Groups(settings).takeover()}"


def _redis(settings: Settings) -> str:
    async def ask() -> None:
        store = Store(settings.redis.url.get_secret_value(), settings.namespace)
        try:
            await store.open()
            await store.check_server()
        finally:
            await store.close()

    asyncio.run(ask())
    return "ok; maxmemory-policy noeviction"
