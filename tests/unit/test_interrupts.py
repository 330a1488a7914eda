"""An interrupt that Kafka's client turned into something else."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from headrace import interrupts


def swallowing_poll() -> None:
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    raise SystemError("poll returned NULL without setting an exception")


def test_a_lost_interrupt_is_one_again() -> None:
    """As the binding does it: the exception is swallowed, and a SystemError raised. The handler is as before afterwards."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        swallowing_poll()
    assert signal.getsignal(signal.SIGINT) is before


def test_what_no_signal_caused_stays_what_it_is() -> None:
    """A fatal error of the client must not pass for Ctrl-C."""
    with pytest.raises(SystemError), interrupts.kept():
        raise SystemError("fatal")
