"""`headrace dlq show`: one letter in full, and where there is none, what is wrong with the argument."""

from __future__ import annotations

import getpass
from typing import Annotated

import orjson
import structlog
import typer

from headrace.cli import dlq_options as options
from headrace.config import Settings
from headrace.dlq.display import as_json, page, safe
from headrace.dlq.filters import Filters
from headrace.dlq.letter import Letter
from headrace.envelope import Position
from headrace.errors import Exit
from headrace.instrument import log
from headrace.loading import load
from headrace.log import end_offsets

HINT = "`headrace dlq list` shows what is there"


def show_letter(
    which: Annotated[
        str, typer.Argument(metavar="POSITION|REQUEST_ID", help="topic/partition/offset as `list` prints it, or a request id.")
    ],
    *,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show key, value and the producer's headers too. This is logged.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --reveal: all of the value, not only its first 64 KiB.")] = False,
    as_ndjson: options.Json = False,
) -> None:
    """Show one dead letter in full; of several with the same request id the newest.

    Exits 3 if there is none, 2 if the position cannot be read as one.
    """
    settings = load()
    filters = _meant(which, settings)
    newest, count = _newest(settings, filters)
    if newest is None:
        typer.echo(f"{_why_none(which, filters, settings)}; {HINT}", err=True)
        raise typer.Exit(Exit.NOTHING)
    if count > 1:
        typer.echo(
            f"{count} dead letters have this id; this is the newest. `headrace dlq list --id {newest.request_id}` lists all.", err=True
        )
    if reveal:
        if not structlog.is_configured():
            log.configure()
        structlog.get_logger("headrace.dlq").warning("dead_letter_revealed", position=str(newest.position), user=_user())
    if as_ndjson:
        typer.echo(orjson.dumps(as_json(newest, reveal=reveal)))
        return
    for shown in page(newest, reveal=reveal, full=full):
        typer.echo(shown)


def _meant(which: str, settings: Settings) -> Filters:
    """What stands in the dead-letter topic is a position, all else a request id: those may hold slashes too."""
    dlq = settings.topics.dlq
    try:
        position = Position.parse(which)
    except ValueError as error:
        if which == dlq or which.startswith(f"{dlq}/"):
            raise typer.BadParameter(f"{safe(which)!r} is no position: {_form(error, dlq)}; {HINT}", param_hint="POSITION") from None
        return Filters(request_id=which)
    return Filters(position=position) if position.topic == dlq else Filters(request_id=which)


def _form(error: ValueError, dlq: str) -> str:
    reason = str(error)
    return reason if "at most" in reason else f"write topic/partition/offset with whole numbers, such as {dlq}/0/17"


def _newest(settings: Settings, filters: Filters) -> tuple[Letter | None, int]:
    """The newest letter that is meant, and how many there are; of a position there is one at most."""
    newest: Letter | None = None
    count = 0
    for found in options.letters(settings, filters):
        if filters.match(found):
            count += 1
            if newest is None or (found.trail.hop, found.dead_at_ms) >= (newest.trail.hop, newest.dead_at_ms):
                newest = found
            if filters.position is not None:
                break
    return newest, count


def _why_none(which: str, filters: Filters, settings: Settings) -> str:
    dlq = settings.topics.dlq
    if filters.position is not None:
        return _why_nothing_there(filters.position, settings)
    shown = safe(which)
    try:
        position = Position.parse(which)
    except ValueError:
        return f"no dead letter has the request id {shown!r}"
    return f"{safe(position.topic)} is not the dead-letter topic, which is {dlq}, and no dead letter has the request id {shown!r}"


def _why_nothing_there(position: Position, settings: Settings) -> str:
    ends = end_offsets(settings, position.topic)
    if position.partition not in ends:
        return f"{position.topic} has no partition {position.partition}; it has {len(ends)}, from 0"
    end = ends[position.partition]
    if position.offset >= end:
        return f"{position.topic}/{position.partition} has no offset {position.offset} yet: it ends before {end}"
    return f"{position} holds no record: it is a mark of a transaction, or was removed by retention"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
