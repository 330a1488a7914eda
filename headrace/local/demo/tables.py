"""The demo's tables: plain facts in, rich tables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from headrace.local.demo.plan import Planned
from headrace.local.demo.tally import Found


def accounting(plans: Sequence[Planned], found: Mapping[str, Found], *, title: str, after_replay: bool) -> Table:
    """A row a kind of fault, at most 80 columns wide: how many were sent, how they ended, and whether that is what was foretold."""
    table = Table(
        title=title,
        title_justify="left",
        show_footer=True,
        box=box.SIMPLE,
        padding=0,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    groups: dict[str, list[Planned]] = {}
    for planned in sorted(plans, key=lambda p: (p.error_class or "", p.calls)):
        groups.setdefault(planned.fault, []).append(planned)
    rows = [_row(fault, group, found, after_replay=after_replay) for fault, group in groups.items()]
    sent, good = sum(r.sent for r in rows), sum(r.as_foretold for r in rows)
    table.add_column("fault", footer="all", no_wrap=True)
    for name, total in (
        ("sent", sent),
        ("first", sum(r.first for r in rows)),
        ("retried", sum(r.retried for r in rows)),
        ("dead", sum(r.dead for r in rows)),
    ):
        table.add_column(name, justify="right", footer=str(total), no_wrap=True)
    table.add_column("as", no_wrap=True)
    table.add_column("calls", justify="right", footer=str(sum(r.calls for r in rows)), no_wrap=True)
    table.add_column("each", justify="right", no_wrap=True)
    table.add_column("ok", justify="right", footer=str(good), no_wrap=True)
    for r in rows:
        colour = "green" if r.as_foretold == r.sent else "bold red"
        numbers = [str(n) for n in (r.sent, r.first, r.retried, r.dead)]
        table.add_row(r.fault, *numbers, r.classes, str(r.calls), r.calls_each, f"[{colour}]{r.as_foretold}[/]")
    return table


_SHORT = {
    "rate limited": "limited 1 s",
    "rate limited for longer": "limited 6 s",
    "broken prompt": "bad prompt",
    "neither body nor prompt": "no prompt",
}
LEGEND = (
    "first, retried: completed at the first call, after a retry. as: the class of\n"
    "the dead. calls: of the model; each: per request. ok: as foretold."
)


@dataclass(frozen=True, slots=True)
class _Row:
    fault: str
    sent: int
    first: int
    retried: int
    dead: int
    classes: str
    calls: int
    calls_each: str
    as_foretold: int


def _row(fault: str, group: list[Planned], found: Mapping[str, Found], *, after_replay: bool) -> _Row:
    ends = [found[p.key] for p in group]
    completed = [f for f in ends if "completed" in f.results]
    dead = [f for f in ends if f.letters and "completed" not in f.results]
    first = sum(f.calls == 1 for f in completed)
    each = sorted({f.calls for f in ends})
    return _Row(
        fault=_SHORT.get(fault, fault),
        sent=len(group),
        first=first,
        retried=len(completed) - first,
        dead=len(dead),
        classes=_briefly(sorted({name for f in dead for name in f.letters})),
        calls=sum(f.calls for f in ends),
        calls_each=str(each[0]) if len(each) == 1 else f"{each[0]}–{each[-1]}",
        as_foretold=sum(found[p.key].is_end(p, after_replay=after_replay) for p in group),
    )


def _briefly(classes: Sequence[str]) -> str:
    """One class by name, and of several how many more: the row that has them is one that went wrong."""
    return classes[0] + (f" +{len(classes) - 1}" if len(classes) > 1 else "") if classes else ""


def lateness(late_ms: Sequence[int]) -> str:
    """How late the retries were, in one line."""
    if not late_ms:
        return "no retries"
    early = sum(late < 0 for late in late_ms)
    p50, p99 = late_ms[len(late_ms) // 2], late_ms[min(len(late_ms) - 1, int(len(late_ms) * 0.99))]
    return f"{len(late_ms)} retries: {early} early; late by {p50} ms (median), {p99} ms (p99), {late_ms[-1]} ms (worst)"
