"""The blocking client while another thread closes it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace.client import Client, blocking
from headrace.config import Settings
from headrace.errors import ClientClosed


def test_a_call_handed_to_a_loop_that_has_just_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for for ever: the client was closed between the look and the hand-over."""
    monkeypatch.setattr(blocking, "_LOOK_S", 0.01)
    client, ended = Client(Settings()), threading.Event()
    client._loop = asyncio.new_event_loop()  # does not run
    client._thread = threading.Thread(target=ended.wait, daemon=True)
    client._thread.start()
    threading.Timer(0.05, ended.set).start()
    with pytest.raises(ClientClosed, match="another thread"):
        client.submit({"request_id": "a", "prompt": "p"})
    client._loop.close()
