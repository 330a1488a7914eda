"""The options by which `pause`, `resume` and `cancel` say what they mean, who asks, and why; and the store they write to."""

from __future__ import annotations

import asyncio
import difflib
import getpass
import platform
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from headrace.config import Settings
from headrace.controls.entry import NAME_CHARS, NO_REASON, WHO_CHARS, WHY_CHARS, Scope, plain
from headrace.store import Store

_R = TypeVar("_R")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
MOST_IDS = 1_000_000
_NAMED_LINES = 5

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Request ids.", show_default=False)]
Provider = Annotated[str | None, typer.Option(metavar="NAME", help="A provider of headrace.yaml.")]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="A model.")]
Agent = Annotated[str | None, typer.Option(metavar="NAME", help="agent_id of the requests.")]
Channel = Annotated[str | None, typer.Option(metavar="NAME", help="channel of the requests.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why: `status` and the dead letters show it.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who asks; user@host if not given.")]
File = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with one request id a line; `-` for stdin.", allow_dash=True, dir_okay=False)
]
Json = Annotated[bool, typer.Option("--json", help="NDJSON on stdout.")]
NO_WHY = NO_REASON


def scope_of(
    settings: Settings, *, provider: str | None = None, model: str | None = None, agent: str | None = None, channel: str | None = None
) -> Scope:
    """What the options name. Raises typer.BadParameter for a provider that nobody configured, or a name no request can have."""
    if provider is not None:
        _known(provider, [one.name for one in settings.providers])
    for option, name in (("--model", model), ("--agent", agent), ("--channel", channel)):
        if name is not None and not 0 < len(name) <= NAME_CHARS:
            raise typer.BadParameter(f"needs 1 to {NAME_CHARS} characters", param_hint=option)
    return Scope(provider, model, agent, channel)


def _known(provider: str, names: list[str]) -> None:
    if provider in names:
        return
    close = difflib.get_close_matches(provider, names, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    raise typer.BadParameter(f"{plain(provider, 64)} is no provider of this configuration; {meant}", param_hint="--provider")


def who(by: str | None) -> str:
    """Who asks."""
    if by is not None:
        return _text(by, WHO_CHARS, "--by")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return plain(f"{user}@{platform.node()}", WHO_CHARS)


def why(reason: str) -> str:
    """Why, in one line."""
    return _text(reason, WHY_CHARS, "--reason")


def _text(text: str, most: int, option: str) -> str:
    line = plain(text, most + 1)
    if not 0 < len(line) <= most:
        raise typer.BadParameter(f"needs 1 to {most} characters, in one line", param_hint=option)
    return line


def ids_of(ids: list[str] | None, file: Path | None) -> list[str]:
    """The ids given and those of the file, each once. Raises typer.BadParameter naming the lines that hold none."""
    found = dict.fromkeys(ids or ())
    if bad := [request_id for request_id in found if not _ID.fullmatch(request_id)]:
        raise typer.BadParameter(f"{plain(bad[0], 128)!r} is no request id: 1-128 of A-Z a-z 0-9 . _ : -", param_hint="ID")
    if file is not None:
        found |= dict.fromkeys(_lines(file))
    if len(found) > MOST_IDS:
        raise typer.BadParameter(f"{len(found):,} ids are too many for one command: at most {MOST_IDS:,}", param_hint="--file")
    return list(found)


def _lines(file: Path) -> Iterable[str]:
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot be read: {error.strerror}", param_hint="--file") from None
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    bad = [number for number, line in enumerate(lines, start=1) if line and not _ID.fullmatch(line)]
    if bad:
        where = ", ".join(map(str, bad[:_NAMED_LINES])) + (", …" if len(bad) > _NAMED_LINES else "")
        raise typer.BadParameter(f"no request id in line {where}; nothing was done. One id a line, nothing else", param_hint="--file")
    return [line for line in lines if line]


def with_store(settings: Settings, work: Callable[[Store], Awaitable[_R]]) -> _R:
    """Run `work` over an open store. Raises StoreUnavailable."""

    async def run() -> _R:
        store = Store(settings.redis.url.get_secret_value(), settings.namespace)
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())
