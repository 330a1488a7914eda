"""Keys in files: read again when they change, however they are written, and never lost for a bad moment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.config import EndpointSettings, ProviderSettings
from headrace.llm import Call, Llm, Reply
from headrace.llm.keyfile import KeyFile, Look

YOUNG = 1  # ns after the file's own time: it may still be changing


class Nobody:
    """A transport that is never asked."""

    async def send(self, call: Call) -> Reply:
        raise AssertionError

    async def close(self) -> None:
        """Nothing is open."""


def test_a_settled_file_is_read_once(tmp_path: Path) -> None:
    """Its times and its place tell; a young one is read each time, since a write within the same tick leaves them as they were."""
    path = tmp_path / "key"
    path.write_text(" sk-one\n")
    file = KeyFile(path)
    now_ns = path.stat().st_mtime_ns
    assert file.look(wall_ns=now_ns + YOUNG).key == "sk-one"
    assert file.look(wall_ns=now_ns + YOUNG).key == "sk-one"
    assert file.look(wall_ns=now_ns + 10**10).key == "sk-one"
    assert file.look(wall_ns=now_ns + 10**10) == (None, None)
    file.forget()
    assert file.look(wall_ns=now_ns + 10**10).key == "sk-one"


def test_a_switched_link_is_another_file(tmp_path: Path) -> None:
    """A Kubernetes secret: `key` leads through `..data`, a link that is replaced as a whole, to files of the same times and size."""
    for name, key in (("..1", "sk-one"), ("..2", "sk-two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(key)
        os.utime(tmp_path / name / "key", (10**9, 10**9))
    data = tmp_path / "..data"
    data.symlink_to("..1")
    (tmp_path / "key").symlink_to("..data/key")
    file = KeyFile(tmp_path / "key")
    assert file.look().key == "sk-one"
    assert file.look().key is None
    (tmp_path / "new").symlink_to("..2")
    (tmp_path / "new").rename(data)
    assert file.look().key == "sk-two"


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"a\nb", "k\u00e9y".encode(), b"x" * 70_000])
def test_what_is_no_key_is_a_fault_without_its_content(tmp_path: Path, content: bytes) -> None:
    """And so is a file that is gone."""
    path = tmp_path / "key"
    path.write_bytes(content)
    look = KeyFile(path).look()
    assert (look.key, bool(look.fault)) == (None, True)
    path.unlink()
    assert KeyFile(path).look().fault == "No such file or directory"


class Watched:
    """Two endpoints that share a provider's key file, one with a key of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "key"
        self.path.write_text("sk-first-one")
        self.told: list[tuple[str, Any]] = []
        listed = (
            EndpointSettings(base_url="http://a"),
            EndpointSettings(base_url="http://b"),
            EndpointSettings(base_url="http://c", api_key="sk-own-key"),
        )
        provider = ProviderSettings(name="p", endpoints=listed, api_key="sk-first-one", api_key_file=self.path)
        self.llm = Llm([provider], pool=1, now_ms=lambda: 0, transport=Nobody(), tell=lambda *event: self.told.append(event))
        self.heard: list[set[str]] = []
        self.llm.on_new_keys.append(lambda targets: self.heard.append({one.key_id for one in targets}))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """`<(a command)` was read at the start, and gives nothing twice: the key is the one it gave, and no look hangs in it."""
    os.mkfifo(tmp_path / "key")
    assert KeyFile(tmp_path / "key").look() == Look()


async def test_a_changed_key_is_the_one_of_the_next_call(tmp_path: Path) -> None:
    """For every endpoint that has it from there, and for none that has its own; the targets change, and nobody is told the key."""
    one = Watched(tmp_path)
    before = {target.key_id for target in one.llm.targets}
    await one.llm.keys.look()
    assert not one.told
    one.path.write_text("sk-second-one")
    await one.llm.keys.look()
    sent = [endpoint.key.headers["Authorization"] for endpoint in one.llm._endpoints()]
    assert sent == ["Bearer sk-second-one", "Bearer sk-second-one", "Bearer sk-own-key"]
    (after,) = one.heard
    assert len(before) == len(after) == 2
    assert len(before & after) == 1
    assert [name for name, _ in one.told] == ["key_changed", "key_changed"]
    assert "second" not in str(one.told)
    first = next(one.llm._endpoints())
    assert {b"sk-first-one", b"sk-second-one"} <= set(first.key.secrets), "an answer to the old key may still be on its way"


async def test_an_unreadable_file_keeps_the_last_good_key_and_is_told_once(tmp_path: Path) -> None:
    """Until it can be read again; then the next fault is told anew."""
    one = Watched(tmp_path)
    for _ in range(2):
        one.path.unlink()
        await one.llm.keys.look()
        await one.llm.keys.look()
        one.path.write_text("sk-first-one")
        await one.llm.keys.look()
    assert [name for name, _ in one.told] == ["key_unreadable", "key_unreadable"]
    assert next(one.llm._endpoints()).key.headers["Authorization"] == "Bearer sk-first-one"
    assert not one.heard


async def test_a_signal_reads_every_file_soon(tmp_path: Path) -> None:
    """Also one whose times say that nothing has changed; without waiting for the next look."""
    one = Watched(tmp_path)
    changed = asyncio.Event()
    one.llm.on_new_keys.append(lambda _: changed.set())
    os.utime(one.path, (10**9, 10**9))
    await one.llm.keys.look()
    watching = asyncio.create_task(one.llm.run())
    try:
        async with asyncio.timeout(40):
            one.path.write_text("sk-other-one")
            os.utime(one.path, (10**9, 10**9))
            one.llm.keys.reread()
            await changed.wait()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
