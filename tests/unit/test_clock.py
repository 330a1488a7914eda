"""A worker's now: it only grows, follows the server forward at once, and pays back what it was ahead."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from headrace.clock import SLEW, Clock


def test_starts_on_the_wall_clock() -> None:
    """Without a server the clock counts on from the wall clock of its start, and says that it is not synced."""
    clock = Clock(monotonic_s=100.0, wall_ms=1_000_000)
    assert clock.now_ms(monotonic_s=100.25) == 1_000_250
    assert not clock.synced


def test_takes_a_correction_forward_at_once() -> None:
    """A server ahead of this machine is followed with the next reading."""
    clock = Clock(monotonic_s=0.0, wall_ms=1_000_000)
    assert clock.now_ms(monotonic_s=1.0) == 1_001_000
    clock.sync(1_009_000, monotonic_s=2.0)
    assert clock.now_ms(monotonic_s=2.0) == 1_009_000
    assert clock.synced


def test_first_server_time_is_taken_whole_while_nothing_was_read() -> None:
    """A wall clock that is an hour ahead leaves no trace where Redis answers before the first reading."""
    clock = Clock(monotonic_s=0.0, wall_ms=5_000_000)
    clock.sync(1_000_000, monotonic_s=1.0)
    assert clock.now_ms(monotonic_s=2.0) == 1_001_000


def test_pays_back_what_it_was_ahead_at_five_percent() -> None:
    """A correction backward slows the clock to 95 %, until it agrees with the server, and no longer."""
    clock = Clock(monotonic_s=0.0, wall_ms=1_000_000)
    clock.sync(1_000_000, monotonic_s=0.0)
    assert clock.now_ms(monotonic_s=0.0) == 1_000_000
    clock.sync(999_900, monotonic_s=0.0)
    assert clock.now_ms(monotonic_s=1.0) == 1_000_950
    assert clock.now_ms(monotonic_s=2.0) == 1_001_900
    assert clock.now_ms(monotonic_s=3.0) == 1_002_900


def test_first_server_time_after_a_reading_does_not_freeze_the_clock() -> None:
    """A lane that began on the wall clock goes on at 95 % when Redis turns out to be behind: it does not stand still."""
    clock = Clock(monotonic_s=0.0, wall_ms=1_000_000)
    assert clock.now_ms(monotonic_s=0.0) == 1_000_000
    clock.sync(940_000, monotonic_s=0.0)
    assert clock.now_ms(monotonic_s=10.0) == 1_009_500


def test_frequent_syncs_do_not_keep_it_ahead() -> None:
    """Synced before every reading, the clock still pays back."""
    clock = Clock(monotonic_s=0.0, wall_ms=1_001_000)
    assert clock.now_ms(monotonic_s=0.0) == 1_001_000
    for second in range(1, 30):
        clock.sync(1_000_000 + second * 1_000, monotonic_s=float(second))
        now_ms = clock.now_ms(monotonic_s=float(second))
    assert now_ms == 1_029_000


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 5.0), st.none() | st.integers(-60_000, 60_000)),
        min_size=1,
        max_size=40,
    ),
    wall_ms=st.integers(1_700_000_000_000, 1_900_000_000_000),
)
def test_never_goes_backwards_never_slower_than_it_says_never_behind_the_server(
    steps: list[tuple[float, int | None]],
    wall_ms: int,
) -> None:
    """Whatever servers say, now grows by at least 95 % of the time that passed, and is not behind the last server's time."""
    clock = Clock(monotonic_s=0.0, wall_ms=wall_ms)
    mono_s, before_ms, server = 0.0, clock.now_ms(monotonic_s=0.0), None
    for passed_s, skew_ms in steps:
        mono_s += passed_s
        if skew_ms is not None:
            server = wall_ms + skew_ms
            clock.sync(server + mono_s * 1000.0, monotonic_s=mono_s)
        now_ms = clock.now_ms(monotonic_s=mono_s)
        assert now_ms - before_ms >= passed_s * 1000.0 * (1 - SLEW) - 2
        assert server is None or now_ms >= server + mono_s * 1000.0 - 2
        before_ms = now_ms


def test_threads_never_see_it_go_back() -> None:
    """Readings of one thread never fall, while another thread syncs back and forth."""
    clock = Clock()
    stop = threading.Event()
    falls: list[int] = []

    def read() -> None:
        before = clock.now_ms()
        while not stop.is_set():
            now = clock.now_ms()
            if now < before:
                falls.append(before - now)
            before = now

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    base_ms = time.time_ns() // 1_000_000
    start_s = time.monotonic()
    for turn in range(2_000):
        clock.sync(base_ms + (time.monotonic() - start_s) * 1000.0 + (turn % 7) * 10)
    stop.set()
    for reader in readers:
        reader.join()
    assert not falls
