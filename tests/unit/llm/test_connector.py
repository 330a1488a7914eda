"""How long an idle connection is trusted, learned from those that failed."""

from __future__ import annotations

from unittest import mock

from headrace.llm import connector
from headrace.llm.connector import Patience


def test_what_failed_halves_the_trust_and_time_restores_it() -> None:
    """After a loss only half that idleness is trusted; each quiet minute doubles it, up to where it began."""
    with mock.patch.object(connector, "monotonic") as clock:
        clock.return_value = 0.0
        patience = Patience(1.5)
        assert patience.trusts(1.5)
        patience.lost(0.4)
        assert patience.trusts(0.2)
        assert not patience.trusts(0.21)
        clock.return_value = 60.0
        assert patience.trusts(0.4)
        assert not patience.trusts(0.41)
        clock.return_value = 600.0
        assert patience.trusts(1.5)
        assert not patience.trusts(1.51)


def test_a_loss_after_less_idleness_counts_and_one_after_more_does_not() -> None:
    """The shortest idleness that failed decides."""
    patience = Patience(1.5)
    patience.lost(0.1)
    patience.lost(1.2)
    assert not patience.trusts(0.3)
