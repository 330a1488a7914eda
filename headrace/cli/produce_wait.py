"""`headrace produce --wait`: opens the run's files, shows how far it is, and turns its end into an exit code. The work is `headrace.gather`'s."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NamedTuple

import orjson

from headrace import interrupts
from headrace.cli.pace import Pace
from headrace.config import Settings
from headrace.errors import Exit, HeadraceError, Refused
from headrace.gather import Gathering, Place, Run, Sheet, taken_up
from headrace.gather.run import alone, read
from headrace.gather.sheet import Order
from headrace.produce import Survey
from headrace.results import Follower

_AGAIN = "the same command again goes on from here; nothing is sent or paid twice"


class Options(NamedTuple):
    """What the command line says of the waiting."""

    output: Path | None
    order: Order
    timeout_s: float | None
    look_back: bool
    json: bool


def gather(source: BinaryIO, found: Survey, settings: Settings, limit: int, options: Options) -> Exit:
    """Send what the survey let pass, and gather the ends. Raises HeadraceError."""
    try:
        return _gather(source, found, settings, limit, options)
    except BrokenPipeError:
        raise  # whoever reads stdout has enough
    except OSError as error:
        where = f"--output {options.output}" if options.output is not None else f"stdout, or the temporary folder {tempfile.gettempdir()}"
        remedy = "give a file that can be written and has room with --output, and repeat the command"
        raise HeadraceError(f"{where}: {error.strerror or error}; {remedy}") from None


def _gather(source: BinaryIO, found: Survey, settings: Settings, limit: int, options: Options) -> Exit:
    with _place(options.output) as place, _terminations_interrupt():
        wanted = Run(_digest(source), len(found.ids), options.order, settings.topics.main, settings.topics.results)
        run = taken_up(place, wanted, lambda: _begin(settings), lambda: _cluster(settings))
        if run.finished is not None:
            sys.stderr.write(f"{options.output}: is complete already; nothing was sent\n")
            return _summed(found, run.finished, options)
        with _sheet(place, found, run, options) as sheet:
            pace = Pace(sys.stderr)
            look_back = options.look_back or not settings.duplicate_notices
            work = Gathering(settings, run, place, sheet, found.ids, progress=pace, look_back=look_back, timeout_s=options.timeout_s)
            try:
                with interrupts.kept():
                    complete = work.go(source, found, limit)
            except KeyboardInterrupt:
                pace.end()
                return _interrupted(sheet, options)
            except HeadraceError:
                pace.end()
                sys.stderr.write(f"Stopped: {len(sheet)} of {sheet.total} answered; {_again(options)}\n")
                raise
            pace.end()
            return _ended(sheet, place, found, options, complete=complete)


def _ended(sheet: Sheet, place: Place, found: Survey, options: Options, *, complete: bool) -> Exit:
    counts = dict(sheet.counts)
    if complete:
        sheet.flush()
        if place.output is not None:
            sheet.sync()
            _saved(place).finish(place, counts)
        return _summed(found, counts, options)
    if place.output is not None:
        replace(_saved(place), output_bytes=sheet.written()).save(place)
    sheet.close_with(f"no end of it within {options.timeout_s:g} s; it may still come")
    sys.stderr.write(f"timed out: {_again(options)}\n")
    return _summed(found, counts | {"unanswered": sheet.total - len(sheet)}, options)


def _saved(place: Place) -> Run:
    return read(place.run)


def _summed(found: Survey, counts: Mapping[str, int], options: Options) -> Exit:
    figures = dict(counts)
    completed = figures.get("completed", 0)
    if options.json:
        sys.stdout.write(orjson.dumps({"kind": "summary", "requests": len(found.ids), "bad": found.bad_count, **figures}).decode() + "\n")
    said = ", ".join(f"{count} {status}" for status, count in sorted(figures.items()))
    sys.stderr.write(f"{len(found.ids)} request{'' if len(found.ids) == 1 else 's'}: {said}\n")
    return Exit.DONE if completed == len(found.ids) and not found.bad_count else Exit.PARTIAL


def _interrupted(sheet: Sheet, options: Options) -> Exit:
    sys.stderr.write(f"Interrupted: {len(sheet)} of {sheet.total} answered; {_again(options)}\n")
    return Exit.INTERRUPTED


def _again(options: Options) -> str:
    if options.output is None:
        return "sent again, a request is answered with what it was answered before; with --output a run can be taken up where it was"
    return _AGAIN


def _cluster(settings: Settings) -> str | None:
    follower = Follower(settings)
    try:
        return follower.cluster()
    finally:
        follower.close()


def _begin(settings: Settings) -> tuple[dict[int, int], str, str | None]:
    """Where the results stand before anything is sent."""
    follower = Follower(settings)
    try:
        follower.open()
        return dict(follower.positions or {}), follower.topic_id or "", follower.cluster()
    finally:
        follower.close()


@contextlib.contextmanager
def _place(output: Path | None) -> Iterator[Place]:
    if output is None:
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            yield Place(None, Path(folder))
        return
    place = Place(output, output.parent)
    with alone(place):
        yield place


@contextlib.contextmanager
def _sheet(place: Place, found: Survey, run: Run, options: Options) -> Iterator[Sheet]:
    """The files the results are written to, an earlier run's among them."""
    with contextlib.ExitStack() as files:
        output = sys.stdout.buffer if place.output is None else files.enter_context(place.output.open("a+b"))
        if options.order == "arrival":
            sheet = Sheet(found.ids.index, output, None)
        else:
            sheet = Sheet(found.ids.index, files.enter_context(place.results.open("a+b")), output)
        if place.output is not None:
            sheet.take_up(run.output_bytes)
            if len(sheet) < run.gathered:
                raise Refused(
                    f"{place.output}: {run.gathered - len(sheet)} lines of the run are missing; remove {place.run} and begin anew"
                )
            if run.output_bytes is not None:
                replace(run, output_bytes=None).save(place)
        yield sheet


def _digest(source: BinaryIO) -> str:
    source.seek(0)
    digest = hashlib.blake2b(digest_size=16)
    while chunk := source.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _terminations_interrupt() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: with what was gathered written down."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
