"""Judges committed offsets: they only grow, pass no end, lose nothing, and reach the end when all is settled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace.audit.verdict import Broken, Rule
from headrace.committed import Standing


class Sample(NamedTuple):
    """A committed offset as it was seen once."""

    topic: str
    partition: int
    committed: int


def judge_offsets(
    before: Mapping[tuple[str, int], Standing],
    after: Mapping[tuple[str, int], Standing],
    samples: Sequence[Sample],
    settled: Collection[str],
    broken: Broken,
) -> None:
    """Two looks at every partition, and earlier `samples` in order. The topics in `settled` must have no lag."""
    for (topic, partition), now in after.items():
        at = f"{topic}/{partition}"
        if now.committed > now.end:
            broken(Rule.OFFSETS, None, at, f"committed {now.committed}, beyond the log's end {now.end}")
        if now.lost:
            broken(Rule.OFFSETS, None, at, f"up to {now.lost} records left the log before they were settled (transaction markers count)")
        if (earlier := before.get((topic, partition))) is not None:
            _judge_growth(at, earlier, now, broken)
        if topic in settled and (behind := _behind(now)):
            broken(Rule.OFFSETS, None, at, f"committed {now.committed}, {behind} before the log's end {now.end}, though all is settled")
    _judge_samples(samples, before, broken)


def _behind(standing: Standing) -> int:
    return max(0, standing.end - max(standing.committed, standing.start))


def _judge_growth(at: str, earlier: Standing, now: Standing, broken: Broken) -> None:
    if now.committed < earlier.committed:
        broken(Rule.OFFSETS, None, at, f"committed {earlier.committed}, and later {now.committed}")
        return
    reopened = [offset for offset in (now.map.offsets() if now.map else ()) if earlier.resolved(offset) is True]
    if earlier.map is not None and now.committed < earlier.map.end:
        end = now.map.end if now.map is not None else now.committed
        reopened += [offset for offset in range(end, earlier.map.end) if earlier.map.resolved(offset)]
    if reopened:
        broken(Rule.OFFSETS, None, f"{at}/{reopened[0]}", f"{len(reopened)} offsets were settled, and later were not")


def _judge_samples(samples: Sequence[Sample], before: Mapping[tuple[str, int], Standing], broken: Broken) -> None:
    highest: dict[tuple[str, int], int] = {}
    last = [Sample(topic, partition, standing.committed) for (topic, partition), standing in before.items()]
    for sample in (*samples, *last):
        key = (sample.topic, sample.partition)
        if sample.committed < highest.get(key, -1):
            broken(Rule.OFFSETS, None, f"{sample.topic}/{sample.partition}", f"committed {highest[key]}, and later {sample.committed}")
        highest[key] = max(sample.committed, highest.get(key, -1))
