"""The picture on one screen. Every text in it that somebody else wrote is made safe for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from headrace.controls.entry import Entry
from headrace.dlq.display import moment, safe
from headrace.pauses import Pause
from headrace.plural import counted
from headrace.roster import Member
from headrace.status.picture import Endpoint, Lag, Letters, Picture, warnings

_CLASSES = 4
_WIDE = 100  # columns of a terminal: below, what can be done without is left out, so that no word is broken


def screen(picture: Picture, *, width: int = _WIDE) -> RenderableType:
    """All of it, warnings first. On fewer than 100 columns without versions and beginnings."""
    parts: list[RenderableType] = [Text(f"{picture.namespace}  {moment(picture.now_ms)} UTC", style="bold")]
    found = list(warnings(picture))
    parts += [Text.from_markup(f"[bold red]![/] {_plain(text)}", overflow="fold") for text in found]
    if not found:
        parts.append(Text.from_markup("[green]nothing to see to[/]"))
    if picture.lags:
        parts += ["", _lanes(picture)]
    if picture.members:
        parts += ["", _workers(picture, wide=width >= _WIDE)]
    if endpoints := picture.endpoints():
        parts += ["", _endpoints(endpoints)]
    if picture.pauses or picture.orders:
        parts += ["", _orders(picture, wide=width >= _WIDE)]
    elif picture.held is not None:
        parts += ["", "nothing is paused or cancelled"]
    parts += ["", *_rest(picture)]
    return Group(*parts)


def _table(*columns: str | Column) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _lanes(picture: Picture) -> Table:
    table = _table("lane", *map(_number, ("waiting", "in flight", "workers")), Column("paused", overflow="fold"))
    for lag in picture.lags:
        unknown = "redis" in picture.away
        flying = "–" if lag.lane == "wheels" else f"{picture.in_flight(lag.lane):,}"
        counts = ("?", "?") if unknown else (flying, str(picture.workers(lag.lane)))
        colour = "yellow" if lag.lag else "green"
        table.add_row(lag.lane, f"[{colour}]{lag.lag:,}[/]", *counts, _reasons(picture, lag))
    return table


def _reasons(picture: Picture, lag: Lag) -> str:
    told = {str(why) for member in picture.live() for why in member.lanes.get(lag.lane, {}).get("pauses", ())}
    return _plain("; ".join(sorted(told)))


def _workers(picture: Picture, *, wide: bool) -> Table:
    folded = (Column(name, overflow="fold") for name in ("worker", "host", "lanes"))
    table = _table(*folded, _number("in flight"), _short("up"), _short("seen"), *(("version",) if wide else ()))
    for member in picture.members:
        silent = member.silent(picture.now_ms)
        seen = f"{max(0, picture.now_ms - member.at_ms) // 1000} s ago"
        up = _span(picture.now_ms - member.since_ms)
        table.add_row(
            _plain(member.instance or member.incarnation), _plain(f"{member.host}/{member.pid}"), _plain(_lanes_of(member)),
            "?" if silent else str(sum(int(lane.get("in_flight", 0)) for lane in member.lanes.values())), up,
            f"[red]{seen}[/]" if silent else seen, *((_plain(member.version),) if wide else ()),
        )  # fmt: skip
    return table


def _endpoints(endpoints: Sequence[Endpoint]) -> Table:
    table = _table("endpoint", Column("of", overflow="fold"), *map(_number, ("in flight", "workers")), Column("left out", overflow="fold"))
    for one in endpoints:
        out = ", ".join(f"by {count} ({why})" for why, count in one.out.items())
        table.add_row(
            _plain(one.endpoint), _plain(one.provider), f"{one.in_flight:,}", str(one.workers), f"[red]{_plain(out)}[/]" if out else ""
        )
    return table


def _lanes_of(member: Member) -> str:
    return ", ".join(name if _ready(lane) else f"{name} (joining)" for name, lane in member.lanes.items() if name != "wheels")


def _ready(lane: Mapping[str, Any]) -> bool:
    return bool(lane.get("joined", True))


def _orders(picture: Picture, *, wide: bool) -> Table:
    folded = (Column(name, overflow="fold") for name in ("of", "by", "why"))
    table = _table(_short("order"), *folded, _short("until"), *((_short("since"),) if wide else ()))
    now_ms = picture.now_ms
    for order in picture.orders:
        until = "resumed" if order.until_ms is None else _when(order.until_ms, now_ms)
        since = (_when(order.since_ms, now_ms),) if wide else ()
        table.add_row(_kind(order), _plain(_about(order)), _plain(order.who), _plain(order.why), until, *since)
    for pause in picture.pauses:
        about = f"provider {pause.scope.provider}, key {pause.scope.key_id}" + (f", model {pause.scope.model}" if pause.scope.model else "")
        table.add_row("[yellow]shut[/]", _plain(about), "the provider", _plain(_shut_by(pause)), _when(pause.until_ms, now_ms))
    return table


def _when(at_ms: int, now_ms: int) -> str:
    """As short as it is clear beside the time above: the time today, the day and time of this year, else the day."""
    at, now = moment(at_ms), moment(now_ms)
    return at[11:] if at[:10] == now[:10] else at[5:16] if at[:4] == now[:4] else at[:10]


def _number(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)


def _short(name: str) -> Column:
    return Column(name, no_wrap=True)


def _shut_by(pause: Pause) -> str:
    return " ".join(filter(None, (pause.error_class or "quota or credentials", pause.code)))


def _kind(order: Entry) -> str:
    return "[yellow]pause[/]" if order.kind == "pause" else "[red]cancel[/]"


def _about(order: Entry) -> str:
    if order.kind == "ids":
        return counted(order.left, "id")
    return str(order.scope) + (", sent before" if order.kind == "cancel" else "")


def _rest(picture: Picture) -> Iterator[RenderableType]:
    if picture.letters is not None:
        yield Text.from_markup(f"dead letters: {_letters(picture.letters)}")
    if picture.held is not None:
        admission = "open" if picture.held.closed_since_ms is None else "[red]closed[/]"
        epoch = _plain(picture.held.epoch) if picture.held.epoch else "none yet: no worker was ever started on it"
        yield Text.from_markup(f"redis: admission {admission}, epoch {epoch}")


def _letters(letters: Letters) -> str:
    more = "" if letters.whole else " or more"
    if letters.open is None:
        return f"{letters.total:,}{more} in the topic; which are open Redis would have to say"
    classes = [f"{name} {count:,}" for name, count in list(letters.by_class.items())[:_CLASSES]]
    rest = ", …" if len(letters.by_class) > _CLASSES else ""
    oldest = f", the oldest of {moment(letters.oldest_ms)} UTC" if letters.oldest_ms is not None else ""
    of_class = f" ({', '.join(classes)}{rest}){oldest}" if classes else ""
    total = "" if letters.total is None else f", {letters.total:,} in the topic"
    return f"{letters.open:,}{more} open{of_class}{total}"


def _span(ms: int) -> str:
    """A length of time in its largest unit."""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _plain(text: str) -> str:
    return escape(safe(text, 400))
