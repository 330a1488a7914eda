"""The frame of a thread: started, stopped, its failure kept, its turns seen; and last words that cannot be heard."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.worker_thread import WorkerThread


def idle(thread_of: list[WorkerThread]) -> None:
    thread_of[0].stopping.wait(10)


def test_it_works_until_it_is_told_to_stop() -> None:
    """And says whether it ended in time; one that was never started has ended."""
    held: list[WorkerThread] = []
    thread = WorkerThread("t", lambda: idle(held), last_words=lambda _: None)
    held.append(thread)
    assert thread.stop(0.0)
    thread = WorkerThread("t", lambda: idle(held), last_words=lambda _: None)
    held[0] = thread
    thread.start()
    assert thread.alive
    assert not thread.join(0.01)
    assert thread.stop(10)
    assert not thread.alive
    assert thread.failure is None


def test_one_that_does_not_end_is_not_waited_for() -> None:
    """Whatever it hangs in."""
    let = threading.Event()
    thread = WorkerThread("t", lambda: let.wait(10) and None, last_words=lambda _: None)
    thread.start()
    assert not thread.stop(0.05)
    let.set()
    assert thread.join(10)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_it_is_kept_and_told(error: BaseException) -> None:
    """The process watches `failure`."""

    def body() -> None:
        raise error

    heard: list[BaseException] = []
    thread = WorkerThread("t", body, last_words=heard.append)
    thread.start()
    assert thread.join(10)
    assert thread.failure is error
    assert heard == [error]


def test_last_words_that_raise_are_no_second_failure() -> None:
    """The loop they are told to is closed: the thread ends all the same, without an exception nobody handles (pytest would fail on one)."""

    def body() -> None:
        raise ValueError("the first")

    def last_words(_: BaseException) -> None:
        raise RuntimeError("Event loop is closed")

    thread = WorkerThread("t", body, last_words=last_words)
    thread.start()
    assert thread.join(10)
    assert isinstance(thread.failure, ValueError)


def test_its_turns_are_seen_from_outside() -> None:
    """A thread that does not come round is known by the age of its last turn."""
    thread = WorkerThread("t", lambda: None, last_words=lambda _: None)
    before = time.monotonic()
    assert before <= thread.turned() <= time.monotonic()
    assert thread.turned_at >= before
