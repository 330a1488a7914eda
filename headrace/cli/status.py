"""`headrace status`: the fleet on one screen. What is asked is `headrace.status`' work."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.live import Live

from headrace.errors import Exit
from headrace.lane import groups
from headrace.loading import load
from headrace.status import Gather, Picture, screen
from headrace.status.lines import lines
from headrace.store import Store

WATCH_S = 2.0


def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C.")] = False,
    as_ndjson: Annotated[bool, typer.Option("--json", help="NDJSON on stdout.")] = False,
) -> None:
    """Show what waits, who works, what is paused and by whom, dead letters, Redis, and what needs looking at. Changes nothing.

    Exit codes: 0 everything could be asked; 4 Kafka or Redis could not be reached, and the rest is shown; 1 neither could;
    2 the configuration is wrong.
    """
    settings = load()

    async def run() -> Picture:
        store = Store(settings.redis.url.get_secret_value(), settings.namespace)
        gather = Gather(settings, groups(settings), store)
        console = Console(highlight=False)
        try:
            picture = await gather.picture()
            if not watch:
                _show(console, picture, as_ndjson=as_ndjson)
            elif as_ndjson or not console.is_terminal:
                await _repeat(gather, console, picture, as_ndjson=as_ndjson)
            else:
                await _live(gather, console, picture)
            return picture
        finally:
            await store.close()

    away = asyncio.run(run()).away
    raise typer.Exit(Exit.DONE if not away else Exit.PARTIAL if len(away) == 1 else Exit.ERROR)


async def _repeat(gather: Gather, console: Console, picture: Picture, *, as_ndjson: bool) -> None:
    while True:
        _show(console, picture, as_ndjson=as_ndjson)
        await asyncio.sleep(WATCH_S)
        picture = await gather.picture()


async def _live(gather: Gather, console: Console, picture: Picture) -> None:
    with Live(screen(picture, width=console.width), console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(WATCH_S)
            live.update(screen(await gather.picture(), width=console.width), refresh=True)


def _show(console: Console, picture: Picture, *, as_ndjson: bool) -> None:
    if not as_ndjson:
        console.print(screen(picture, width=console.width))
        return
    for line in lines(picture):
        sys.stdout.write(orjson.dumps(line, option=orjson.OPT_NON_STR_KEYS).decode() + "\n")
    sys.stdout.flush()
