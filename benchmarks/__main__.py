"""`make bench`: every measurement there is, as a table on stdout and as JSON in `benchmarks/results/local/`."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import engine
from headrace import __version__

RESULTS = Path(__file__).parent / "results" / "local"
SHOWN = ("records_per_s", "cpu_us_per_record", "records_per_settle", "peak_memory_mb")


def main() -> int:
    """Measure, show, keep."""
    options = _options()
    progress = Console(stderr=True, highlight=False)
    found = engine.measure(options.records, options.rounds, progress.print)
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(_table(found, options.records))
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"engine-{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_text(json.dumps({"of": _circumstances(), "records": options.records, "engine": found}, indent=1), "utf-8")
    progress.print(f"kept in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measurements of Headrace, on a stack of their own.")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _table(found: dict[str, list[dict[str, Any]]], records: int) -> Table:
    table = Table(title=f"The engine alone, {records:,} records a round: median (min–max)", title_justify="left")
    table.add_column("handler", no_wrap=True)
    for name in SHOWN:
        table.add_column(name.replace("_", " "), justify="right")
    for arm, rounds in found.items():
        table.add_row(arm, *(_spread([row[name] for row in rounds]) for name in SHOWN))
    return table


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.10g} ({min(values):,.10g}–{max(values):,.10g})"


def _circumstances() -> dict[str, str | int]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "version": __version__,
        "commit": commit,
        "python": sys.version.split()[0],
        "system": platform.system(),
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    sys.exit(main())
