"""`headrace audit`: every accepted id with its end, what is on its way, what appears twice, and whether a promise is broken."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from headrace.audit import Row, Verdict, audit, calls_in
from headrace.dlq.display import safe
from headrace.dlq.progress import Progress
from headrace.errors import Exit
from headrace.loading import load
from headrace.plural import counted

SHOWN = 10
_COLOURS = {"completed": "green", "open": "cyan", "lost": "red"}
_MEANINGS = {
    "completed": "an answer, once",
    "open": "on its way",
    "degraded": "a substitute answer, and a dead letter",
    "failed": "a dead letter, or dropped by a rule",
    "duplicate": "only notices that it repeats another",
    "lost": "settled without an outcome",
    "gone": "only traces; retention has removed the rest",
}


class Which(enum.StrEnum):
    """Which ids are listed."""

    OPEN = "open"
    TWICE = "twice"
    BROKEN = "broken"


def run(
    *,
    calls: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also count the calls: a log with a line a call, such as the stub's (`stub-llm --log FILE`).",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    only: Annotated[Which | None, typer.Option(help="List the ids that are on their way, appear twice, or broke a promise.")] = None,
    as_ndjson: Annotated[bool, typer.Option("--json", help="NDJSON: a line an id, a line a violation, then the summary.")] = False,
) -> None:
    """Read all topics from the beginning and check every promise. Changes nothing; workers may go on meanwhile.

    Exit codes: 0 every promise was kept, whatever is still on its way; 7 one is broken; 3 the topics are empty;
    1 the broker cannot be reached.
    """
    progress = Progress("read")
    verdict = audit(load(), calls=None if calls is None else calls_in(calls), say=lambda _topic, count: progress.note(count))
    progress.end()
    if not any(verdict.read.values()):
        typer.echo("there is nothing in the topics", err=True)
        raise typer.Exit(Exit.NOTHING)
    if as_ndjson:
        for line in _lines(verdict, only):
            typer.echo(line)
    else:
        _print(verdict, only, with_calls=calls is not None)
    if not verdict.ok:
        raise typer.Exit(Exit.BROKEN_PROMISE)


def _chosen(verdict: Verdict, only: Which | None) -> Iterator[Row]:
    broken = {violation.request_id for violation in verdict.violations}
    for row in verdict.rows():
        if only is None or (row.open_at if only is Which.OPEN else row.twice if only is Which.TWICE else row.request_id in broken):
            yield row


def _lines(verdict: Verdict, only: Which | None) -> Iterator[bytes]:
    for row in _chosen(verdict, only):
        yield orjson.dumps({"kind": "id", **row._asdict()})
    for violation in verdict.violations:
        yield orjson.dumps({"kind": "violation", **violation._asdict()})
    summary = {
        "ok": verdict.ok,
        "ids": verdict.ids,
        "states": verdict.states,
        "completed": verdict.completed,
        "duplicates": verdict.duplicates,
        "open": verdict.open,
        "open_at": verdict.open_at,
        "read": verdict.read,
        "unjudged": verdict.unjudged,
        "broken": {rule.value: count for rule, count in verdict.broken.items()},
        "calls": verdict.calls,
        "extra_calls": verdict.extra_calls,
    }
    yield orjson.dumps({"kind": "summary", **summary})


def _print(verdict: Verdict, only: Which | None, *, with_calls: bool) -> None:
    console = Console(highlight=False)
    if only is not None:
        _print_rows(console, _chosen(verdict, only), with_calls=with_calls)
    else:
        _print_states(console, verdict)
        _print_some(console, verdict, Which.OPEN, "on their way")
        harmless = " (harmless: no id was completed twice)" if verdict.ok else ""
        _print_some(console, verdict, Which.TWICE, f"sent or ended more than once{harmless}")
    _print_judgement(console, verdict)


def _print_states(console: Console, verdict: Verdict) -> None:
    table = Table("state", Column("ids", justify="right"), "means", box=box.SIMPLE, pad_edge=False, show_edge=False)
    for state, meaning in _MEANINGS.items():
        if count := verdict.states.get(state, 0):
            where = _records_at(verdict.open_at) if state == "open" else ""
            table.add_row(f"[{_COLOURS.get(state, 'yellow')}]{state}[/]", f"{count:,}", meaning + where)
    console.print(table)


def _records_at(places: Mapping[str, int]) -> str:
    """Records, and not ids: of one id several copies may be on their way."""
    told = [f"{number:,} that moved on meanwhile" if place == "moving" else f"{number:,} in {place}" for place, number in places.items()]
    return f"; records, copies too: {', '.join(told)}" if told else ""


def _print_some(console: Console, verdict: Verdict, which: Which, text: str) -> None:
    """The first ids of a kind, and how many there are."""
    rows = _chosen(verdict, which)
    first = [row.request_id for row in islice(rows, SHOWN)]
    total = len(first) + sum(1 for _ in rows)
    if total:
        more = ", …" if total > len(first) else ""
        console.print(f"{total:,} {text}: {', '.join(map(_plain, first))}{more} [dim](--only {which})[/]")


def _print_rows(console: Console, rows: Iterable[Row], *, with_calls: bool) -> None:
    numbers = ("records", "completed", "degraded", "failed", "duplicate", "letters", *(("calls",) if with_calls else ()))
    columns = [Column(name, justify="right") for name in numbers]
    table = Table(Column("id", overflow="fold"), "state", *columns, box=box.SIMPLE, pad_edge=False, show_edge=False)
    for row in rows:
        where = ", ".join(f"{place} {count}" for place, count in row.open_at.items())
        counts = (row.sources, row.completed, row.degraded, row.failed, row.duplicates, row.letters, row.calls)
        cells = [str(count) for count in counts if count is not None]
        table.add_row(_plain(row.request_id), row.state + (f" ({where})" if where else ""), *cells)
    console.print(table)


def _print_judgement(console: Console, verdict: Verdict) -> None:
    for reason, count in verdict.unjudged.items():
        console.print(f"[dim]not judged: {count:,} {reason}[/]")
    if verdict.calls is not None:
        console.print(f"{counted(verdict.calls, 'call')}, {verdict.extra_calls:,} beyond what the outcomes account for")
    for violation in verdict.violations[:SHOWN]:
        console.print(f"[red]{_plain(str(violation))}[/]")
    read = sum(verdict.read.values())
    if verdict.ok:
        console.print(f"[green]Every promise was kept[/]: {counted(verdict.ids, 'id')} in {counted(read, 'record')}.")
        return
    broken = ", ".join(f"{rule} ({count:,})" for rule, count in verdict.broken.items())
    console.print(f"[bold red]Broken[/]: {broken}. All of it: `headrace audit --json`.")


def _plain(text: str) -> str:
    """Text out of hostile headers, fit for a terminal."""
    return escape(safe(text, 600))
