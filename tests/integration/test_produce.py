"""`headrace produce` against a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from headrace.loading import load
from headrace.log import scan
from headrace.topics import Topics, compare

FILE = Path(__file__).parents[2] / "topics.yaml"
GOOD = b'{"request_id":"r%d","prompt":"x"}\n'


@pytest.fixture
def env(kafka: str, namespace: str, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "topics.yaml"
    file.write_text(FILE.read_text().replace("name: llm", f"name: {namespace}-llm"))
    env = {"HEADRACE_KAFKA_BOOTSTRAP": kafka, "HEADRACE_TOPICS": str(file)}
    settings = load(env)
    topics = Topics(settings)
    changes, fitted, _ = compare(settings, topics)
    topics.apply([change for change in changes if change.topic == settings.topics.main], fitted)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return clean | env


def produce(env: dict[str, str], *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "produce", *arguments], env=env, input=stdin, capture_output=True, timeout=60, check=False
    )


def sent(env: dict[str, str]) -> set[tuple[bytes | None, bytes | None]]:
    settings = load({name: value for name, value in env.items() if name.startswith("HEADRACE_")})
    return {(record.key, record.value) for record in scan(settings, settings.topics.main)}


def test_stdin_is_sent_keyed_and_unchanged(env: dict[str, str]) -> None:
    """Every line becomes a record: key the request id, value the line's bytes."""
    result = produce(env, "-", "--json", stdin=b"".join(GOOD % n for n in range(50)))
    assert result.returncode == 0, result.stderr
    assert orjson.loads(result.stdout)["sent"] == 50
    assert sent(env) == {(b"r%d" % n, (GOOD % n).strip()) for n in range(50)}


def test_one_bad_line_and_nothing_is_sent_unless_skipped(env: dict[str, str], tmp_path: Path) -> None:
    """`refuse` sends nothing and names the line, `skip` sends the others, `--check` never sends."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(GOOD % 1 + b"{}\n" + GOOD % 3)
    assert [produce(env, str(path)).returncode, produce(env, str(path), "--check").returncode] == [5, 5]
    assert sent(env) == set()
    result = produce(env, str(path), "--bad-lines", "skip")
    assert result.returncode == 4
    assert b"line 2" in result.stderr
    assert {key for key, _ in sent(env)} == {b"r1", b"r3"}


def test_no_lines_no_file_no_broker_each_have_their_code(env: dict[str, str], tmp_path: Path) -> None:
    """3, 2 and 1, each with one line of reason and no traceback."""
    (tmp_path / "empty").write_bytes(b"\n")
    results = [
        produce(env, str(tmp_path / "empty")),
        produce(env, str(tmp_path / "nowhere")),
        produce(env | {"HEADRACE_KAFKA_BOOTSTRAP": "127.0.0.1:1"}, "-", stdin=GOOD % 1),
    ]
    assert [result.returncode for result in results] == [3, 2, 1]
    assert all(b"Traceback" not in result.stderr for result in results)


def test_an_interrupt_says_how_many_were_sent(env: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C ends with 130 and a count that the topic confirms."""
    path = tmp_path / "many.jsonl"
    path.write_bytes(b"".join(GOOD % n for n in range(60_000)))
    code = (
        "import os, signal, headrace.produce as p, headrace.writer as w\n"
        "real, count = w.Writer.send, 0\n"
        "def send(self, output, *, tag=None):\n"
        "    global count\n"
        "    count += 1\n"
        "    real(self, output, tag=tag)\n"
        "    if count == 500: os.kill(os.getpid(), signal.SIGINT)\n"
        "w.Writer.send = send\n"
        "from headrace.cli import main\n"
        f"main(['produce', {str(path)!r}])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert result.returncode == 130 == 128 + signal.SIGINT
    count = len(sent(env))
    assert 500 <= count < 60_000
    assert f"the broker took {count} of 60000".encode() in result.stderr
