"""`headrace load`: a synthetic load on the main topic, at a rate of its own. The work is `headrace.loadgen`'s."""

from __future__ import annotations

import math
import re
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import orjson
import typer

from headrace import interrupts
from headrace.errors import ConfigError, Exit
from headrace.plural import counted

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.loadgen import Mix
    from headrace.loadgen.figures import Figures

_PRIORITIES = ("high", "normal", "low")


def load(  # noqa: PLR0913, PLR0917  each is an option of the command line
    rate: Annotated[float, typer.Option(metavar="N", min=0.001, max=1_000_000, help="Records a second.")] = 10.0,
    duration: Annotated[float | None, typer.Option(metavar="S", min=0.1, help="Seconds; 60 where no --count is given either.")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Records.")] = None,
    arrivals: Annotated[Literal["poisson", "constant"], typer.Option(help="How they are spread in time.")] = "poisson",
    prompt_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="A number, uniform:LOW,HIGH or lognormal:MEDIAN,SIGMA.")
    ] = "lognormal:400,0.8",
    agents: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="How many agents send.")] = 10,
    agents_skew: Annotated[float, typer.Option(metavar="S", min=0, max=5, help="Zipf: the n-th sends 1/n^S. 0: all alike.")] = 1.0,
    channels: Annotated[str, typer.Option(metavar="NAME=WEIGHT,…", help="The channels.")] = "default=1",
    priorities: Annotated[str, typer.Option(metavar="NAME=WEIGHT,…", help="high, normal, low.")] = "normal=1",
    faults: Annotated[
        str,
        typer.Option(metavar="NAME=SHARE,…", help="bad_bytes, wrong_schema, expired, duplicate, broken (for the stub's scenario trade)."),
    ] = "",
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed and prefix send the same bytes at the same times.")] = 1,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Of the request ids; a random one, if not given.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the results, and tell the times from due to answered.")] = False,
    timeout: Annotated[float, typer.Option(metavar="S", min=0.1, help="--wait: seconds after the last record.")] = 120.0,
    check: Annotated[bool, typer.Option("--check", help="Print the plan; send nothing, ask no broker.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The plan or the summary as JSON.")] = False,
) -> None:
    """Send a synthetic load to the main topic, whatever the broker and the workers do: an open loop, seeded and repeatable.

    It acts at once, on the broker the configuration names; a model that costs money is paid. Times count from when a record
    was due. Exit codes: 0 all sent (--wait: and ended); 4 the broker refused some, or some had no end in time; 1 the
    broker cannot be reached; 2 an option or the configuration is wrong; 130 interrupted, with the summary so far.
    """
    from headrace import loadgen
    from headrace.loading import load as load_settings
    from headrace.topics import Topics

    settings = load_settings()
    duration = 60.0 if duration is None and count is None else duration
    prefix = prefix if prefix is not None else f"load-{secrets.token_hex(4)}"
    mix = _mix(settings, prefix, _Shape(prompt_bytes, agents, agents_skew, channels, priorities, faults))
    due = loadgen.arrivals(arrivals, rate, seed, duration_s=duration, count=count)
    if check:
        return _plan(mix, settings, seed, json=json, expected=_expected(rate, duration, count), rate=rate, arrivals=arrivals)
    Topics(settings).existing([settings.topics.main])
    sys.stderr.write(f"sending to {settings.topics.main} at {settings.kafka.bootstrap}, ids {prefix}-…\n")
    work = loadgen.Load(settings, rate, follow=wait, say=_say, patience_s=timeout)
    code = Exit.DONE
    try:
        with interrupts.kept():
            work.run(due, mix.records(seed))
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    _tell(work.figures, json=json)
    if code is Exit.DONE and (work.figures.refused or work.figures.unanswered):
        code = Exit.PARTIAL
    raise typer.Exit(int(code))


class _Shape(NamedTuple):
    """What the mix is made of, as the command line writes it."""

    prompt_bytes: str
    agents: int
    skew: float
    channels: str
    priorities: str
    faults: str


def _mix(settings: Settings, prefix: str, shape: _Shape) -> Mix:
    """Raises ConfigError, one line a fault."""
    from headrace.loadgen.mix import FAULTS, Mix
    from headrace.loadgen.spec import Size, Weighted, shares, zipf
    from headrace.topics import wanted

    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", prefix):
        raise ConfigError([f"--prefix: {prefix[:60]!r} makes no request ids; give up to 120 characters of A-Z a-z 0-9 . _ : -"])
    longest = (wanted(settings)["main"].number("max.message.bytes") or 1_048_588) - 2_048
    return Mix(
        prefix,
        Size.parse(shape.prompt_bytes),
        zipf(shape.agents, shape.skew),
        Weighted.parse(shape.channels, "--channels"),
        Weighted.parse(shape.priorities, "--priorities", _PRIORITIES),
        shares(shape.faults, "--faults", tuple(FAULTS)),
        longest,
    )


def _expected(rate: float, duration_s: float | None, count: int | None) -> int:
    return min(count or sys.maxsize, math.ceil(rate * duration_s) if duration_s is not None else sys.maxsize)


def _plan(mix: Mix, settings: Settings, seed: int, *, json: bool, expected: int, rate: float, arrivals: str) -> None:
    shares = {"good": 1 - sum(mix.faults.values()), **mix.faults}
    plan: dict[str, Any] = {
        "topic": settings.topics.main,
        "broker": settings.kafka.bootstrap,
        "rate": rate,
        "arrivals": arrivals,
        "seed": seed,
        "expected": {kind: round(share * expected) for kind, share in shares.items()},
        "takes_s": round(expected / rate, 1),
        "first": [_first(planned) for planned, _ in zip(mix.records(seed), range(5), strict=False)],
    }
    if json:
        sys.stdout.write(orjson.dumps(plan).decode() + "\n")
        return
    sys.stdout.write(
        f"to {plan['topic']} at {plan['broker']}: {expected} records, {rate:g}/s {arrivals}, seed {seed}, {plan['takes_s']} s\n"
    )
    for kind, number in plan["expected"].items():
        sys.stdout.write(f"  {kind:<14}{number:>10}\n")
    for planned in plan["first"]:
        sys.stdout.write(f"  first: {planned['kind']:<12} {planned['bytes']:>7} bytes  {planned['key']}\n")


def _first(planned: Any) -> dict[str, Any]:
    return {"kind": planned.kind, "key": planned.key and planned.key.decode(), "bytes": len(planned.value)}


def _say(at_s: float, figures: Figures, trouble: str | None) -> None:
    sent = figures.offered.total()
    line = f"{at_s:6.0f} s  sent {sent} ({sent / at_s:.1f}/s)  taken {len(figures.taken)}  worst late {figures.late.latest(-max(1, int(figures.rate))):.1f} ms"
    if figures.ends:
        line += f"  answered {len(figures.answered)}"
    if figures.refused:
        line += f"  refused {figures.refused.total()}"
    sys.stderr.write(line + (f"  ({trouble})" if trouble else "") + "\n")


def _tell(figures: Figures, *, json: bool) -> None:
    summary = figures.summary()
    if json:
        sys.stdout.write(orjson.dumps(summary).decode() + "\n")
        return
    kinds = ", ".join(f"{number} {kind}" for kind, number in summary["kinds"].items())
    sys.stdout.write(
        f"sent      {summary['sent']} in {summary['took_s']} s: {summary['achieved_rate']}/s of {summary['rate']:g}/s asked ({kinds})\n"
    )
    for reason, number in summary["refused"].items():
        sys.stdout.write(f"refused   {number}: {reason}\n")
    for name, of in (("late_ms", "late"), ("taken_ms", "taken"), ("answered_ms", "answered")):
        if summary[name]:
            sys.stdout.write(f"{of:<10}" + "  ".join(f"{point} {ms} ms" for point, ms in summary[name].items()) + "\n")
    if summary["unanswered"] is not None:
        counts = {status: number for status, number in summary["ends"].items() if status != "duplicate"}
        ends = ", ".join(f"{number} {status}" for status, number in counts.items()) or "none"
        sys.stdout.write(f"ends      {ends}; {counted(summary['unanswered'], 'id')} without one\n")
        _tell_uncounted(summary["kinds"], summary["ends"])


def _tell_uncounted(kinds: dict[str, int], ends: dict[str, int]) -> None:
    """What was sent and is in no end, since ends are counted by id."""
    if copies := kinds.get("duplicate", 0):
        notices = counted(ends.get("duplicate", 0), "notice")
        sys.stdout.write(f"copies    {copies} sent, {notices} of them read by then; they are not waited for\n")
    if bad := kinds.get("bad_bytes", 0):
        sys.stdout.write(f"no id     {bad} of bad_bytes: dead letters (undecodable), which are not followed\n")
