"""`headrace produce --wait` against a real broker, a real worker and the stub LLM, interrupted and taken up again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.local.stub import Rule
from tests.support.bench import Bench
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.fixtures import bench, stub  # noqa: F401  fixtures
from tests.support.stub import PatientStub

BROKEN = Rule.model_validate({"name": "broken", "match": {"prompt_contains": "[broken]"}, "action": "invalid_request"})
PACED = Rule.model_validate({"name": "paced", "match": {}, "action": {"latency": {"uniform_ms": [5, 60]}}})
COUNT = 400
PATIENT_S = 60.0


def written(folder: Path, count: int = COUNT, *, broken: int = 7) -> tuple[Path, list[str]]:
    """A file of requests, one of them to be refused by the model; and its ids in order."""
    ids = [f"r{n:04}" for n in range(count)]
    lines = [
        orjson.dumps({"request_id": request_id, "prompt": "[broken]" if n == broken else f"hello {n}"}) for n, request_id in enumerate(ids)
    ]
    path = folder / "in.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path, ids


def read(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


class Run:
    """`headrace produce --wait` as a process, to be interrupted once its output has so many lines."""

    def __init__(self, variables: dict[str, str], *arguments: str) -> None:
        command = [sys.executable, "-m", "headrace", "produce", "--wait", *arguments]
        self.process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    async def ended(self) -> tuple[int, str]:
        _, said = await asyncio.to_thread(self.process.communicate, timeout=PATIENT_S)
        return self.process.returncode, said.decode()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT_S):
            while not holds():
                assert self.process.poll() is None, "it ended before"
                await asyncio.sleep(0.02)


async def refuses_to_begin_again(variables: dict[str, str], arguments: tuple[str, ...], folder: Path, output: Path) -> None:
    """A run that is complete has nothing to do, and one whose input was changed is another."""
    before = read(output)
    code, said = await Run(variables, *arguments).ended()
    assert (code, "complete already" in said) == (4, True), said
    written(folder, COUNT + 1)
    code, said = await Run(variables, *arguments).ended()
    assert (code, "the input" in said) == (5, True), said
    assert read(output) == before


@pytest.mark.parametrize("order", ["input", "arrival"])
async def test_cut_off_twice_and_taken_up(bench: Bench, stub: PatientStub, tmp_path: Path, order: str) -> None:  # noqa: F811
    """After Ctrl-C, and after kill -9, the same command goes on: in the end every id stands there once, and was called once."""
    path, ids = written(tmp_path)
    output = tmp_path / "out.jsonl"
    gathered = output if order == "arrival" else tmp_path / "out.jsonl.headrace.results.jsonl"
    stub.set_rules((BROKEN, PACED))
    variables = environment(bench, tmp_path)
    arguments = (str(path), "--output", str(output), "--order", order)

    def some(count: int) -> Callable[[], bool]:
        return lambda: gathered.exists() and gathered.read_bytes().count(b"\n") >= count

    async with Engine(bench.settings(stub.base_url, limits={"concurrency": 8})):
        for number, count in ((signal.SIGINT, 20), (signal.SIGKILL, 120)):
            run = Run(variables, *arguments)
            await run.until(some(count))
            os.kill(run.process.pid, number)
            code, said = await run.ended()
            assert code == (130 if number == signal.SIGINT else -signal.SIGKILL), said
        with gathered.open("ab") as file:
            file.write(b'{"request_id": "r0399", "sta')  # as a machine that lost its power leaves it
        if order == "arrival":
            (tmp_path / "out.jsonl.headrace.sent").write_bytes(b"")  # nor does it know what the broker has: all is sent again
        code, said = await Run(variables, *arguments).ended()
        assert code == 4, said
        lines = read(output)
        assert (sorted(line["request_id"] for line in lines), len(lines)) == (ids, COUNT)
        if order == "input":
            assert [line["request_id"] for line in lines] == ids
        assert [line["error"]["class"] for line in lines if line["status"] != "completed"] == ["invalid_request"]
        assert stub.calls == dict.fromkeys(ids, 1)
        if order == "input":
            await refuses_to_begin_again(variables, arguments, tmp_path, output)
    assert (len(await bench.until("main", COUNT)) == COUNT) == (order == "input")


async def test_answered_before_it_began(bench: Bench, stub: PatientStub, tmp_path: Path) -> None:  # noqa: F811
    """Requests that were answered by an earlier run get those answers and failures, and one with another content a conflict; no call is made."""
    path, ids = written(tmp_path, 30)
    stub.set_rules((BROKEN,))
    variables = environment(bench, tmp_path)
    async with Engine(bench.settings(stub.base_url)):
        first = await headrace(variables, "produce", str(path), "--wait")
        assert first.returncode == 4, first.stderr
        path.write_bytes(path.read_bytes().replace(b'"hello 3"', b'"changed"'))
        second = await headrace(variables, "produce", str(path), "--wait", "--order", "input")
        assert second.returncode == 4, second.stderr
    lines, again = ([orjson.loads(line) for line in run.stdout.splitlines()] for run in (first, second))
    assert [line["request_id"] for line in again] == ids
    assert [new for old, new in zip(lines, again, strict=True) if old != new] == [again[3]]
    assert (again[3]["of"], again[3]["error"]["class"]) == ("conflict", "id_conflict")
    assert stub.calls == dict.fromkeys(ids, 1)


async def test_without_notices_it_looks_before_it_sends(bench: Bench, stub: PatientStub, tmp_path: Path) -> None:  # noqa: F811
    """Where copies get no notice, earlier ends are looked for first, and what has one is not sent."""
    path, ids = written(tmp_path, 20)
    stub.set_rules((BROKEN,))
    (tmp_path / "headrace.yaml").write_text("duplicate_notices: false\n")
    variables = environment(bench, tmp_path, HEADRACE_CONFIG=str(tmp_path / "headrace.yaml"))
    async with Engine(bench.settings(stub.base_url, duplicate_notices=False)):
        runs = [await headrace(variables, "produce", str(path), "--wait") for _ in range(2)]
    assert [run.returncode for run in runs] == [4, 4], runs[1].stderr
    assert runs[0].stdout == runs[1].stdout
    assert len(await bench.until("main", 20)) == 20
    assert stub.calls == dict.fromkeys(ids, 1)


async def test_time_runs_out_and_it_is_taken_up(bench: Bench, stub: PatientStub, tmp_path: Path) -> None:  # noqa: F811
    """Without a worker each request is said to be unanswered, with 4; the same command later puts the answers in their places."""
    path, ids = written(tmp_path, 10, broken=-1)
    output = tmp_path / "out.jsonl"
    variables = environment(bench, tmp_path)
    code, said = await Run(variables, str(path), "--output", str(output), "--timeout", "1").ended()
    assert code == 4, said
    assert [(line["request_id"], line["status"]) for line in read(output)] == [(request_id, "unanswered") for request_id in ids]
    async with Engine(bench.settings(stub.base_url)):
        code, said = await Run(variables, str(path), "--output", str(output)).ended()
    assert code == 0, said
    assert [(line["request_id"], line["status"]) for line in read(output)] == [(request_id, "completed") for request_id in ids]
    assert stub.calls == dict.fromkeys(ids, 1)
