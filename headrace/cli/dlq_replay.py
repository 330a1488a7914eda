"""`headrace dlq replay`: says what it would send, and with `--execute` sends it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated

import typer

from headrace.cli import dlq_options as options
from headrace.clock import Clock
from headrace.config import Settings
from headrace.dlq.console import iso
from headrace.dlq.display import safe, table
from headrace.dlq.filters import Filters
from headrace.dlq.ledger import Ledger, NoLedger
from headrace.dlq.letter import read_letter
from headrace.dlq.progress import Progress
from headrace.dlq.replay import RecordsRefused, Replay, Report, Terms, new_replay_id
from headrace.dlq.selection import Entry, Rules, Selection, select
from headrace.errors import Exit, HeadraceError
from headrace.loading import load
from headrace.log import scan
from headrace.outcome import Output
from headrace.plural import counted
from headrace.store import Store
from headrace.topics import Topics
from headrace.writer import DeliveryFailed, Writer

NAMED = 10
FOREVER_MS = 10 * 365 * 86_400_000
_BY_SIZE_OR_FORM = ("size", "large", "invalid record")


@dataclass(frozen=True, slots=True)
class _Run:
    """One replay as it was asked for."""

    settings: Settings
    filters: Filters
    rules: Rules
    terms: Terms
    ledger: Ledger


@options.filtered
def replay_letters(
    filters: Filters,
    *,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Send at most so many.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.01, metavar="N", help="Records a second.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="New deadline: RFC 3339, or a span from now such as 1h.")] = None,
    over_cap: Annotated[bool, typer.Option("--over-cap", help="Also what was replayed as often as replay_cap allows.")] = False,
    skip_until: Annotated[
        list[str] | None, typer.Option(metavar="POSITION", help="Leave out a partition's letters up to this position; may be repeated.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Send. Without it, only say what would be sent.")] = False,
) -> None:
    """Send dead letters back to the main topic. A dry run until --execute.

    Key, value and the producer's headers stay as they were; attempts start again at 0, at once. Of one request only
    the newest dead letter is sent. Undecodable, too large and cancelled ones only if --class names them, cut ones never.

    Replaying the same letter again in another run is harmless: the second is settled as a duplicate, without a call.
    """
    filters = replace(filters, after=tuple(options.position(place, "--skip-until") for place in skip_until or ()))
    settings = load()
    now_ms = Clock().now_ms()
    deadline_ms = options.moment(deadline, now_ms, "--deadline", ahead=True)
    if deadline_ms is not None and deadline_ms <= now_ms:
        raise typer.BadParameter("lies in the past: every request would expire", param_hint="--deadline")
    rules = Rules(cap=None if over_cap else settings.replay_cap, limit=limit, at_ms=now_ms, deadline_at_ms=deadline_ms)
    terms = Terms(settings.topics.main, new_replay_id(now_ms), roomier=settings.topics.retry, rate_s=rate, deadline_at_ms=deadline_ms)
    run = _Run(settings, filters, rules, terms, NoLedger())
    raise typer.Exit(_choose(run, execute=execute))


def _choose(run: _Run, *, execute: bool) -> Exit:
    try:
        selection = select(options.letters(run.settings, run.filters), run.filters, run.rules)
    except KeyboardInterrupt:
        typer.echo("interrupted while reading; nothing was sent", err=True)
        return Exit.INTERRUPTED
    _say_selection(selection, run)
    if not selection.chosen:
        return Exit.REFUSED if selection.over_cap else Exit.NOTHING
    if not execute:
        typer.echo("dry run: nothing was sent; --execute sends it", err=True)
        return Exit.DONE
    return _execute(run, selection)


def _execute(run: _Run, selection: Selection) -> Exit:
    asyncio.run(_register(run))
    typer.echo(f"replay id {run.terms.replay_id}", err=True)
    progress = Progress("sent", of=len(selection.chosen))
    identity = f"{run.settings.namespace}.replay.{run.terms.replay_id}"
    replay_run: Replay | None = None
    try:
        with _stopped_by_signals() as stop, closing(_Transactions(run.settings, identity)) as writer:
            replay_run = Replay(writer, run.terms, stop=stop, ledger=run.ledger, progress=progress.note, now_ms=Clock().now_ms)
            partitions = frozenset(position.partition for position in selection.chosen)
            records = scan(run.settings, run.settings.topics.dlq, since_ms=_since_ms(run.filters), partitions=partitions)
            letters = (read_letter(record) for record in takewhile(lambda _: not stop.is_set(), records))
            report = replay_run.run(letters, selection.chosen)
    except HeadraceError as error:
        if replay_run is None or not replay_run.report.sent:
            raise
        typer.echo(f"stopped: {error}", err=True)
        _say_how_to_go_on(run, replay_run.report, len(selection.chosen))
        return Exit.PARTIAL
    finally:
        progress.end()
    return _say_report(run, selection, report)


async def _register(run: _Run) -> None:
    """Before the first record: main takes origin and hop only beside a registered replay id."""
    main = run.settings.topics.main
    retention_ms = Topics(run.settings).existing([main])[main].number("retention.ms")
    ttl_ms = FOREVER_MS if retention_ms is None or retention_ms < 0 else retention_ms
    store = Store(run.settings.redis.url.get_secret_value(), run.settings.namespace)
    try:
        await store.open()
        await store.register_replay(run.terms.replay_id, ttl_ms)
    finally:
        await store.close()


class _Transactions:
    """Batches as transactions. After a refusal the producer is replaced: its next transaction would fail by its sequence numbers."""

    def __init__(self, settings: Settings, transactional_id: str) -> None:
        self._settings = settings
        self._transactional_id = transactional_id
        self._writer: Writer | None = None

    def write_batch(self, outputs: Sequence[Output]) -> None:
        if self._writer is None:
            self._writer = Writer(self._settings, transactional_id=self._transactional_id).__enter__()
        try:
            with self._writer.transaction():
                for output in outputs:
                    self._writer.send(output)
        except DeliveryFailed as failed:
            self.close()
            reasons = {failure.reason for failure in failed.failures}
            if any(word in reason.lower() for reason in reasons for word in _BY_SIZE_OR_FORM):
                raise RecordsRefused("; ".join(sorted(reasons))) from failed
            raise

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM sets the event, so that the transaction in hand ends; the second acts as always."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _since_ms(filters: Filters) -> int | None:
    return None if filters.since_ms is None else filters.since_ms - options.SKEW_MS


def _say_selection(selection: Selection, run: _Run) -> None:
    if selection.chosen:
        typer.echo(f"{counted(len(selection.chosen), 'dead letter')} to {run.terms.topic}")
        for row in table(("CLASS", "COUNT"), [(name, f"{count:,}") for name, count in selection.classes.most_common()]):
            typer.echo(row)
        for entry in list(selection.chosen.values())[:NAMED]:
            typer.echo(f"  {_named(entry)}")
        if len(selection.chosen) > NAMED:
            typer.echo(f"  … and {len(selection.chosen) - NAMED:,} more")
    notes = [f"not sent: {count:,} {name}" for name, count in sorted(selection.skipped.items())]
    notes += [f"not sent: {selection.superseded:,} of which a newer dead letter exists"] if selection.superseded else []
    notes += [f"not sent: {selection.beyond_limit:,} beyond --limit"] if selection.beyond_limit else []
    if selection.expired:
        notes.append(f"{selection.expired:,} are past their deadline and will expire at once; --deadline gives them a new one")
    if selection.over_cap:
        notes.append(f"refused: {len(selection.over_cap):,} were replayed {run.rules.cap} times or more; --over-cap sends them too")
        notes += [f"  {_named(entry)} replayed {entry.replay_count} times" for entry in selection.over_cap[:NAMED]]
    for note in notes or ([] if selection.chosen else ["no dead letter matches"]):
        typer.echo(note, err=True)


def _named(entry: Entry) -> str:
    return f"{safe(str(entry.position))}  {iso(entry.dead_at_ms)}  {entry.error_class}  {entry.request_id or '-'}"


def _say_report(run: _Run, selection: Selection, report: Report) -> Exit:
    if report.interrupted:
        _say_how_to_go_on(run, report, len(selection.chosen))
        return Exit.INTERRUPTED
    typer.echo(f"sent {report.sent:,} of {len(selection.chosen):,}", err=True)
    for position, reason in list(report.refused.items())[:NAMED]:
        typer.echo(f"refused by its size or form: {safe(str(position))}: {safe(reason)}", err=True)
    if report.gone:
        typer.echo(f"{report.gone:,} were removed by retention meanwhile", err=True)
    return Exit.PARTIAL if report.refused or report.gone or selection.over_cap else Exit.DONE


def _say_how_to_go_on(run: _Run, report: Report, total: int) -> None:
    last = {position[:2]: position for position in run.filters.after} | report.last
    more = [f"--skip-until {safe(str(position))}" for position in last.values()]
    if run.rules.limit is not None:
        more.append(f"--limit {run.rules.limit - report.sent}")
    typer.echo(f"sent {report.sent:,} of {total:,}. To go on, repeat the command with: {' '.join(more) or 'nothing more'}", err=True)
