"""A worker's /metrics, read as Prometheus would read it."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.samples import Sample

from tests.support.engine import Engine

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape."""

    text: str
    content_type: str

    @classmethod
    def ask(cls, engine: Engine, accept: str = OPENMETRICS) -> Self:
        """Scrape. Blocking."""
        address = engine.named("health_listening")[0]["address"]
        with urllib.request.urlopen(urllib.request.Request(f"{address}/metrics", headers={"Accept": accept}), timeout=20) as answer:
            return cls(answer.read().decode(), answer.headers["Content-Type"])

    @classmethod
    async def until(
        cls, engine: Engine, holds: Callable[[Self], bool], what: str, *, accept: str = OPENMETRICS, timeout_s: float = 40
    ) -> Self:
        """Scrape until it holds: figures of partitions are a second old, and the dead letters are read on a thread of their own."""
        deadline = time.monotonic() + timeout_s
        while not holds(page := await asyncio.to_thread(cls.ask, engine, accept)):
            assert time.monotonic() < deadline, f"no {what} in {timeout_s} s:\n{page.text}"
            await asyncio.sleep(0.2)
        return page

    def samples(self) -> Iterator[Sample]:
        """All of them."""
        parse = openmetrics if "openmetrics" in self.content_type else plain
        for family in parse(self.text):
            yield from family.samples

    def value(self, name: str, **labels: str) -> float | None:
        """Of the samples with these labels the sum; None without any. `class_` stands for `class`."""
        wanted = {label.rstrip("_"): value for label, value in labels.items()}
        found = [sample.value for sample in self.samples() if sample.name == name and wanted.items() <= sample.labels.items()]
        return sum(found) if found else None
