"""`headrace produce`: requests from a file or stdin to the main topic. Judging and sending is `headrace.produce`'s work."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import orjson
import typer

from headrace import interrupts
from headrace.errors import Exit

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.produce import BadLine, Survey

_SHOWN = 20


def produce(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSONL file, or - for stdin. Our form, or lines of OpenAI's batch format.")],
    *,
    bad_lines: Annotated[
        Literal["refuse", "skip"], typer.Option(help="refuse: send nothing if any line is bad. skip: send the others.")
    ] = "refuse",
    check: Annotated[bool, typer.Option("--check", help="Only judge the lines; send nothing, ask no broker.")] = False,
    json: Annotated[bool, typer.Option("--json", help="NDJSON: a line per bad or repeated line, then a summary.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Also gather the results, as JSONL.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where --wait writes them; stdout, and not to be resumed, if not given.")
    ] = None,
    order: Annotated[Literal["input", "arrival"], typer.Option(help="--wait: in the input's order, or as they come.")] = "input",
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0.1, help="--wait: seconds in all; what has no end by then is said to be unanswered.")
    ] = None,
    look_back: Annotated[
        bool, typer.Option("--look-back", help="--wait: look through all of llm_results for earlier ends before sending.")
    ] = False,
) -> None:
    """Judge every line as the workers will, then send them to the main topic, keyed by request id.

    Sending the same file again is safe: a request id is settled once. Exit codes: 0 all sent (--check: all good);
    4 some lines were bad and skipped, or not taken by the broker; 5 lines are bad, and nothing was sent; 3 no lines;
    1 the broker cannot be reached; 2 the file or the configuration is wrong; 130 interrupted, and how many were sent.

    With --wait: 0 all completed; 4 some were not, and each of them is a line with its error. The same command again goes
    on where it was interrupted (130, 1) or timed out (4): what was sent is not sent again, what was answered not asked again.
    """
    from headrace import produce as work
    from headrace.loading import load

    _fit(wait=wait, check=check, json=json, output=output, timeout=timeout, look_back=look_back)
    settings = load()
    limit = _limit(settings, check=check)
    try:
        source = _buffered() if file == "-" else work.open_input(Path(file))
        before = work.stamp(source)
        found = _survey(source, settings, limit)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted while the lines were read; nothing was sent.\n")
        raise typer.Exit(int(Exit.INTERRUPTED)) from None
    with source:
        _tell(found, json=json)
        refused = found.bad_count > 0 and bad_lines == "refuse"
        sent = failed = 0
        interrupted = False
        if not check and not refused and found.good:
            source.seek(0)
            if work.stamp(source) != before:
                raise typer.BadParameter(f"{file} changed while it was read; nothing was sent")
            if wait:
                from headrace.cli.produce_wait import Options, gather

                raise typer.Exit(int(gather(source, found, settings, limit, Options(output, order, timeout, look_back, json))))
            sent, failed, interrupted = _send(source, found, settings, limit)
    _summary(found, sent=sent, failed=failed, json=json, check=check)
    if refused and not check:
        sys.stderr.write("nothing was sent, since lines are bad: mend them, or send the others with --bad-lines skip\n")
    raise typer.Exit(int(_exit(found, refused=refused, failed=failed, interrupted=interrupted)))


def _fit(*, wait: bool, check: bool, json: bool, output: Path | None, timeout: float | None, look_back: bool) -> None:
    """Raises ConfigError for options that do not go together."""
    from headrace.errors import ConfigError

    faults = []
    if not wait and (output is not None or timeout is not None or look_back):
        faults.append("--output, --timeout and --look-back: are for --wait; add it, or leave them out")
    if wait and check:
        faults.append("--wait and --check: nothing is sent, so nothing would come; keep one")
    if wait and json and output is None:
        faults.append("--json with --wait: needs --output, since stdout would get both")
    if faults:
        raise ConfigError(faults)


def _exit(found: Survey, *, refused: bool, failed: int, interrupted: bool) -> Exit:
    if interrupted:
        return Exit.INTERRUPTED
    if not found.lines:
        return Exit.NOTHING
    if refused:
        return Exit.REFUSED
    return Exit.PARTIAL if failed or found.bad_count else Exit.DONE


def _limit(settings: Settings, *, check: bool) -> int:
    """The largest record the main topic takes, in bytes: the broker's word, or without one that of topics.yaml."""
    from headrace.topics import Topics, wanted

    name = settings.topics.main
    if check:
        return wanted(settings)["main"].number("max.message.bytes") or 1_048_588
    return Topics(settings).existing([name])[name].number("max.message.bytes") or 1_048_588


def _buffered() -> BinaryIO:
    """Stdin in a temporary file: it must be read twice, once to judge and once to send."""
    if sys.stdin.isatty():
        sys.stderr.write("reading requests from the terminal, one JSON line each; Ctrl-D ends\n")
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.flush()
    spool.seek(0)
    return spool


def _survey(source: BinaryIO, settings: Settings, limit: int) -> Survey:
    from rich.console import Console
    from rich.progress import Progress

    from headrace.produce import stamp, survey

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Judging", total=stamp(source)[1])
        return survey(source, settings.topics.main, limit, on_line=lambda size: progress.advance(task, size))


def _send(source: BinaryIO, found: Survey, settings: Settings, limit: int) -> tuple[int, int, bool]:
    """(taken by the broker, not taken, interrupted)."""
    from rich.console import Console
    from rich.progress import Progress

    from headrace.produce import send
    from headrace.writer import DeliveryFailed, Writer

    writer = Writer(settings)
    interrupted = False
    try:
        with writer, Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("Sending", total=found.good)
            try:
                with interrupts.kept():
                    send(source, found, writer, settings.topics.main, limit, on_sent=lambda done: progress.update(task, completed=done))
            except KeyboardInterrupt:
                interrupted = True  # what was handed over still goes out: leaving the writer waits for it
    except DeliveryFailed as error:
        for failure in error.failures[:_SHOWN]:
            sys.stderr.write(f"line {failure.tag}: not taken by the broker: {failure.reason}\n")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if interrupted or writer.delivered + writer.failed < found.good:
            again = "Sending the file again is safe: a request id is settled once."
            sys.stderr.write(f"Stopped: the broker took {writer.delivered} of {found.good} requests. {again}\n")
    return writer.delivered, writer.failed, interrupted


def _tell(found: Survey, *, json: bool) -> None:
    if json:
        for kind, listed in (("bad", found.bad), ("repeated", found.repeated)):
            for line in listed:
                _line({"kind": kind, "line": line.number, "request_id": line.request_id, "reason": line.reason})
        return
    _list(found.bad, found.bad_count)
    _list(found.repeated, found.duplicates)


def _list(listed: list[BadLine], count: int) -> None:
    for line in listed[:_SHOWN]:
        about = f" ({line.request_id})" if line.request_id else ""
        sys.stderr.write(f"line {line.number}{about}: {line.reason}\n")
    if count > _SHOWN:
        sys.stderr.write(f"… and {count - _SHOWN} more; --json lists them\n")


def _summary(found: Survey, *, sent: int, failed: int, json: bool, check: bool) -> None:
    figures: dict[str, Any] = {
        "lines": found.lines,
        "good": found.good,
        "bad": found.bad_count,
        "repeated": found.duplicates,
        "sent": sent,
        "failed": failed,
    }
    if json:
        _line({"kind": "summary", **figures})
        return
    outcome = f"{sent} sent" if not check else "nothing sent (--check)"
    lines = f"{found.lines} line" if found.lines == 1 else f"{found.lines} lines"
    broken = f", {failed} not taken by the broker" if failed else ""
    sys.stdout.write(f"{lines}: {found.good} good, {found.bad_count} bad, {found.duplicates} repeated; {outcome}{broken}\n")


def _line(fields: dict[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(fields).decode() + "\n")
