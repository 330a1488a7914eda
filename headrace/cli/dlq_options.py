"""The options by which every command of `headrace dlq` says which dead letters it means."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from headrace.clock import Clock
from headrace.config import Settings
from headrace.dlq.filters import CLASSES, Filters, parse_moment
from headrace.dlq.letter import Letter, read_letter
from headrace.dlq.progress import Progress
from headrace.envelope import Position
from headrace.log import scan
from headrace.topics import Topics

# Records are stamped as they are appended, a moment after the death they tell of.
SKEW_MS = 600_000

Json = Annotated[bool, typer.Option("--json", help="NDJSON on stdout.")]


def filters_of(
    *,
    classes: Annotated[list[str] | None, typer.Option("--class", metavar="CLASS", help="Error class; may be repeated.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Died at or after: RFC 3339, or a span back from now such as 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Died before: RFC 3339, or a span back from now.")] = None,
    request_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Request id; also found as the record's key.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="agent_id of the request.")] = None,
    channel: Annotated[str | None, typer.Option(metavar="NAME", help="channel of the request.")] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="Provider that was called last.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model that was called last, else the one asked for.")] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text in the request, the key or the error message, without regard to case.")
    ] = None,
) -> Filters:
    """The filters the options say. Raises typer.BadParameter, naming the option."""
    unknown = sorted(set(classes or ()) - CLASSES)
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(sorted(CLASSES))}", param_hint="--class")
    now_ms = Clock().now_ms()
    return Filters(
        classes=frozenset(classes or ()),
        since_ms=moment(since, now_ms, "--since"),
        until_ms=moment(until, now_ms, "--until"),
        request_id=request_id,
        agent_id=agent,
        channel=channel,
        provider=provider,
        model=model,
        text=text,
    )


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `filters_of` before its own; it gets what they say as its first argument, `filters`."""
    asked = inspect.signature(filters_of, eval_str=True).parameters
    own = [parameter for name, parameter in inspect.signature(command, eval_str=True).parameters.items() if name != "filters"]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        filters = filters_of(**{name: given.pop(name) for name in asked})
        command(filters, **given)

    parameters = [*asked.values(), *own]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads, with __annotations__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def moment(text: str | None, now_ms: int, option: str, *, ahead: bool = False) -> int | None:
    """The time an option names, in epoch milliseconds."""
    if text is None:
        return None
    try:
        return parse_moment(text, now_ms, ahead=ahead)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def position(text: str, option: str) -> Position:
    """The position an option names."""
    try:
        return Position.parse(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no position; write topic/partition/offset", param_hint=option) from None


def letters(settings: Settings, filters: Filters) -> Iterator[Letter]:
    """All dead letters that can matter to these filters, matching or not, with progress on stderr.

    Raises KafkaUnavailable, and ConfigError where the dead-letter topic does not exist.
    """
    Topics(settings).existing([settings.topics.dlq])
    since_ms = None if filters.since_ms is None else filters.since_ms - SKEW_MS
    partitions = None if filters.position is None else frozenset({filters.position.partition})
    records = scan(settings, settings.topics.dlq, since_ms=since_ms, partitions=partitions)
    return (read_letter(record) for record in Progress("read").over(records))
