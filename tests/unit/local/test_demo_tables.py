"""The demo's tables: readable where a terminal is narrow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.local.demo.plan import Planned, plan
from headrace.local.demo.tables import LEGEND, accounting
from headrace.local.demo.tally import Found


def shown(plans: list[Planned]) -> list[str]:
    found = {p.key: Found(() if p.error_class else ("completed",), (p.error_class,) if p.error_class else (), p.calls) for p in plans}
    console = Console(width=80, file=io.StringIO())
    console.print(accounting(plans, found, title="What became of each request", after_replay=False))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("count", [20, 1_000, 100_000])
def test_a_table_of_any_size_fits_80_columns_uncut(count: int) -> None:
    """At 80 columns no line is longer, no cell is cut, and every number and every fault stands on one line."""
    lines = shown(plan(count, 1) if count < 100_000 else _many(count))
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert [line.split()[:2] for line in lines if line.strip().startswith("all ")] == [["all", str(count)]]
    assert max(map(len, LEGEND.splitlines())) <= 80


def _many(count: int) -> list[Planned]:
    """As many as the option allows, made of one small plan: planning them all would take seconds."""
    few = plan(1_000, 1)
    return [Planned(f"{p.key}-{n}", p.value, p.fault, p.error_class, p.calls) for n in range(count // len(few)) for p in few]
