"""The token bucket is arithmetic over a time that is passed in."""

from __future__ import annotations

import pytest

from headrace.bucket import Bucket


def test_burst_then_rate() -> None:
    """A burst goes at once, then one each 1/rate seconds."""
    bucket = Bucket(burst=3, per_s=0.5)
    for _ in range(3):
        assert bucket.wait_s(10.0) == 0.0
        bucket.take(10.0)
    assert bucket.wait_s(10.0) == pytest.approx(2.0)
    assert bucket.wait_s(11.0) == pytest.approx(1.0)
    assert bucket.wait_s(12.0) == pytest.approx(0.0)


def test_idle_time_does_not_pile_up() -> None:
    """However long nothing was sent, no more than a burst may follow."""
    bucket = Bucket(burst=2, per_s=1.0)
    bucket.take(0.0)
    for _ in range(2):
        assert bucket.wait_s(1e6) == 0.0
        bucket.take(1e6)
    assert bucket.wait_s(1e6) > 0


def test_needs_a_rate() -> None:
    """A bucket that never fills is a configuration fault."""
    with pytest.raises(ValueError, match="rate"):
        Bucket(burst=1, per_s=0)
