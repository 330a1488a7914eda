"""Dead letters are counted by cause."""

from __future__ import annotations

from dataclasses import replace

from headrace.dlq.stats import group

from .letters import letter


def test_counts_first_and_last() -> None:
    """Each cause has its count and the first and last death; the largest comes first."""
    groups = group([letter(offset=n) for n in (3, 1, 2)] + [letter(offset=9, headers={"error_class": "auth"})])
    assert [(g.error_class, g.provider, g.model, g.count) for g in groups] == [
        ("timeout", "openai", "gpt-4o-mini", 3),
        ("auth", "openai", "gpt-4o-mini", 1),
    ]
    assert (groups[0].first_ms, groups[0].last_ms) == (1_790_000_100_001, 1_790_000_100_003)


def test_many_names_stay_bounded() -> None:
    """Ten thousand model names (field case 27) make a bounded table in which every letter is counted."""
    base = letter()
    groups = group((replace(base, model=f"m-{n}") for n in range(10_000)), groups=100)
    assert len(groups) == 101
    assert sum(g.count for g in groups) == 10_000
