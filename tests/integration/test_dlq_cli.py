"""`headrace dlq` against a real broker and a real Redis: what it finds, and what a replay really writes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
import redis
import structlog
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner, Result

from headrace.cli.dlq import app
from headrace.config import Settings
from headrace.envelope import Header, Record
from headrace.loading import load
from headrace.log import scan
from headrace.outcome import Output
from headrace.writer import Writer

TOPICS_YAML = Path(__file__).parents[2] / "topics.yaml"
CANARY = "CANARY-my-secret-diary"
RETENTION_MS = 3_600_000


@dataclass(frozen=True)
class Desk:
    """Topics of one's own, and the command line pointed at them."""

    settings: Settings
    redis_url: str

    def put(self, *dead: Output) -> None:
        with Writer(self.settings) as writer:
            for output in dead:
                writer.send(output)

    def letter(
        self,
        number: int,
        *,
        value: bytes | None = None,
        key: bytes | None = b"k",
        user: Sequence[Header] = (),
        partition: int = 0,
        **said: str,
    ) -> Output:
        facts = {
            "origin": f"{self.settings.topics.main}/0/{number}",
            "hop": "1",
            "retry_count": "3",
            "dead_at": str(1_790_000_000_000 + number),
            "error_class": "timeout",
            "error_message": "no answer",
            "provider": "openai",
            "model": "gpt-4o-mini",
        } | said
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": CANARY}]}
        own = [("headrace_" + name, text.encode()) for name, text in facts.items()]
        told = value if value is not None else orjson.dumps({"request_id": f"r-{number}", "agent_id": f"a-{number % 2}", "body": body})
        return Output(self.settings.topics.dlq, key, told, [*user, *own], partition)

    def run(self, *arguments: str) -> Result:
        try:
            return CliRunner().invoke(app, arguments)
        finally:
            # `show --reveal` configures it, with a stderr that is closed by now.
            structlog.reset_defaults()

    def main(self) -> list[Record]:
        return list(scan(self.settings, self.settings.topics.main, end="high"))  # a transaction just committed may still be ending


@pytest.fixture
def desk(kafka: str, redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    names = re.sub(r"name: (llm_\w+)", rf"name: {namespace}.\1", TOPICS_YAML.read_text("utf-8"))
    (tmp_path / "topics.yaml").write_text(names, "utf-8")
    for name, value in {
        "HEADRACE_KAFKA_BOOTSTRAP": kafka,
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_NAMESPACE": namespace,
        "HEADRACE_TOPICS": str(tmp_path / "topics.yaml"),
    }.items():
        monkeypatch.setenv(name, value)
    settings = load()
    admin = AdminClient({"bootstrap.servers": kafka})
    limits = {"max.message.bytes": "100000", "retention.ms": str(RETENTION_MS)}
    roomier = {"max.message.bytes": "165536"}
    new = [
        NewTopic(settings.topics.main, 1, 1, config=limits),
        NewTopic(settings.topics.retry, 1, 1, config=roomier),
        NewTopic(settings.topics.dlq, 2, 1, config={"retention.ms": "-1"}),
    ]
    for future in admin.create_topics(new).values():
        future.result(30)
    yield Desk(settings, redis_url)
    admin.delete_topics([settings.topics.main, settings.topics.retry, settings.topics.dlq])


def own(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers if name.startswith("headrace_")}


def test_stats_and_list_find_what_is_meant(desk: Desk) -> None:
    """The counts are by cause, list combines filters, JSON is NDJSON on stdout alone, and 3 means that nothing matched."""
    desk.put(*(desk.letter(n, partition=n % 2, error_class="auth" if n == 5 else "timeout") for n in range(6)))
    counted = desk.run("stats")
    assert counted.exit_code == 0
    assert [row.split()[:4] for row in counted.stdout.splitlines()[1:]] == [
        ["timeout", "openai", "gpt-4o-mini", "5"],
        ["auth", "openai", "gpt-4o-mini", "1"],
    ]
    listed = desk.run("list", "--class", "timeout", "--agent", "a-1", "--json")
    assert sorted(orjson.loads(row)["request_id"] for row in listed.stdout.splitlines()) == ["r-1", "r-3"]
    assert CANARY not in listed.output + desk.run("list").output
    nothing = desk.run("list", "--class", "expired")
    assert (nothing.exit_code, nothing.stdout) == (3, "")
    assert desk.run("list", "--class", "nonsense").exit_code == 2


def test_show_reveals_only_when_asked(desk: Desk) -> None:
    """A letter is found by id and by position; its request is shown, and the look is logged, only with --reveal."""
    desk.put(desk.letter(1), desk.letter(2, key=b"\x1b[2J", value=b"\x1b]0;owned\x07\xff" + b"x" * 900_000))
    hidden = desk.run("show", "r-1")
    assert hidden.exit_code == 0
    assert CANARY not in hidden.output
    revealed = desk.run("show", "r-1", "--reveal")
    assert CANARY in revealed.stdout
    assert "dead_letter_revealed" in revealed.stderr
    assert CANARY not in revealed.stderr
    hostile = desk.run("show", f"{desk.settings.topics.dlq}/0/1", "--reveal")
    assert hostile.exit_code == 0
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", hostile.stdout)
    assert "more bytes" in hostile.stdout
    assert desk.run("show", "r-404").exit_code == 3


def test_dry_run_sends_nothing(desk: Desk) -> None:
    """Without --execute a replay says what it would send and writes neither to the topic nor to Redis."""
    desk.put(desk.letter(1), desk.letter(2))
    tried = desk.run("replay")
    assert tried.exit_code == 0
    assert "2 dead letters" in tried.stdout
    assert "r-1" in tried.stdout
    assert "--execute" in tried.stderr
    assert desk.main() == []
    with closing(redis.Redis.from_url(desk.redis_url)) as client:
        assert list(client.scan_iter(f"{{{desk.settings.namespace}}}:replay:*")) == []


def test_replay_keeps_the_bytes_and_registers_its_id(desk: Desk) -> None:
    """A replay writes key, value and the producer's headers as they were, our headers replaced, under a registered id that lives as long as main's records."""
    user: list[Header] = [("x", b"\xff\x00"), ("x", None), ("x", b"")]
    desk.put(desk.letter(7, key=b"\xa2", user=user, replay_count="1", attempts="[]", error_code="e", first_failed_at="5", elapsed_ms="9"))
    done = desk.run("replay", "--execute", "--deadline", "1h")
    assert done.exit_code == 0
    (record,) = desk.main()
    body = orjson.loads(record.value or b"")
    assert (record.key, body["request_id"], list(record.headers[:3])) == (b"\xa2", "r-7", user)
    said = own(record)
    assert set(said) == {
        "headrace_" + n
        for n in ("origin", "hop", "retry_count", "next_retry_at", "deadline_at", "replay_id", "replay_count", "replayed_at")
    }
    assert (said["headrace_origin"], said["headrace_hop"]) == (f"{desk.settings.topics.main}/0/7", "2")
    assert (said["headrace_retry_count"], said["headrace_replay_count"]) == ("0", "2")
    assert int(said["headrace_deadline_at"]) - int(said["headrace_next_retry_at"]) == pytest.approx(3_600_000, abs=60_000)
    with closing(redis.Redis.from_url(desk.redis_url)) as client:
        assert client.pttl(f"{{{desk.settings.namespace}}}:replay:{said['headrace_replay_id']}") == pytest.approx(RETENTION_MS, abs=60_000)


def test_undecodable_letters_come_back_whole(desk: Desk) -> None:
    """Field cases 13 and 14: bytes FF FE under key A2, an empty value and a tombstone are skipped, and come back bit by bit when named."""
    values = [b"\xff\xfe", b"", None]
    dead = [desk.letter(n, key=b"\xa2", value=b"", error_class="undecodable") for n in range(3)]
    desk.put(*(Output(one.topic, one.key, value, one.headers, 0) for one, value in zip(dead, values, strict=True)))
    skipped = desk.run("replay", "--execute")
    assert skipped.exit_code == 3
    assert "3 undecodable" in skipped.stderr
    assert desk.run("replay", "--class", "undecodable", "--execute").exit_code == 0
    assert [(r.key, r.value) for r in desk.main()] == [(b"\xa2", value) for value in values]


def test_cap_and_superseded(desk: Desk) -> None:
    """Only the newest letter of a request is sent; beyond the cap it is refused by name, and sent with --over-cap."""
    origin = f"{desk.settings.topics.main}/0/1"
    desk.put(desk.letter(1, hop="1"), desk.letter(2, origin=origin, hop="3", replay_count="5"))
    refused = desk.run("replay", "--execute")
    assert refused.exit_code == 5
    assert "r-2" in refused.stderr
    assert "1 of which a newer" in refused.stderr
    assert desk.run("replay", "--execute", "--over-cap").exit_code == 0
    assert [own(r)["headrace_hop"] for r in desk.main()] == ["4"]


def test_a_letter_no_topic_takes_is_named(desk: Desk) -> None:
    """One letter over every limit neither blocks nor loses its neighbours: they are sent, it is named, and the code is 4."""
    # Random bytes: the limit counts what is left after compression.
    desk.put(*(desk.letter(n, value=os.urandom(250_000) if n == 3 else b"{}") for n in range(6)))
    done = desk.run("replay", "--execute")
    assert done.exit_code == 4
    assert f"{desk.settings.topics.dlq}/0/3" in done.stderr
    assert sorted(own(r)["headrace_origin"][-1] for r in desk.main()) == ["0", "1", "2", "4", "5"]


def test_without_redis_nothing_is_sent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay id is registered before the first record: where that fails, no record is written."""
    desk.put(desk.letter(1))
    monkeypatch.setenv("HEADRACE_REDIS_URL", "redis://127.0.0.1:1/0")
    assert desk.run("replay", "--execute").exit_code != 0
    assert desk.main() == []


@pytest.mark.timeout(60)
def test_interrupted_and_gone_on_with(desk: Desk) -> None:
    """Ctrl-C ends a replay with 130 and the way to go on; gone on with, every letter was sent exactly once."""
    desk.put(*(desk.letter(n, partition=n % 2) for n in range(60)))
    command = [sys.executable, "-u", "-c", "from headrace.cli.dlq import app; app()", "replay", "--execute", "--rate", "10"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            next(scan(desk.settings, desk.settings.topics.main, to_end=False))
            process.send_signal(signal.SIGINT)
        except BaseException:
            process.kill()
            raise
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130, said
    sent = len(desk.main())
    assert 0 < sent < 60
    assert f"sent {sent} of 60" in said
    places = re.findall(r"--skip-until \S+", said)
    assert desk.run("replay", "--execute", *(part for place in places for part in place.split())).exit_code == 0
    origins = [own(r)["headrace_origin"] for r in desk.main()]
    assert (len(origins), len(set(origins))) == (60, 60)


def test_list_is_ordered_by_death(desk: Desk) -> None:
    """Under a header, the letters of all partitions stand by time of death; --limit keeps the newest."""
    desk.put(*(desk.letter(n, partition=n % 2) for n in (3, 0, 2, 1)))
    head, *rows = desk.run("list").stdout.splitlines()
    assert head.startswith("DIED (UTC)")
    assert [row.split()[-1] for row in rows] == ["r-0", "r-1", "r-2", "r-3"]
    assert [row.split()[-1] for row in desk.run("list", "--limit", "2").stdout.splitlines()[1:]] == ["r-2", "r-3"]


@pytest.mark.parametrize(
    ("which", "code", "says"),
    [
        ("{dlq}/0", 2, "is no position: write topic/partition/offset"),
        ("{dlq}/0/x", 2, "is no position: write topic/partition/offset"),
        ("{dlq}/0/9", 3, "has no offset 9 yet: it ends before 1"),
        ("{dlq}/7/0", 3, "has no partition 7; it has 2, from 0"),
        ("{main}/0/1", 3, "is not the dead-letter topic"),
        ("r-99", 3, "no dead letter has the request id 'r-99'"),
    ],
)
def test_show_says_what_is_wrong_with_its_argument(desk: Desk, which: str, code: int, says: str) -> None:
    """Malformed, another topic, no such partition, no such offset and an unknown id are told apart, each with the way to the list."""
    desk.put(desk.letter(1))
    shown = desk.run("show", which.format(dlq=desk.settings.topics.dlq, main=desk.settings.topics.main))
    assert shown.exit_code == code
    told = " ".join(re.sub("[│╭╮╰╯─]", " ", shown.stderr).split())
    assert says in told or says.replace(" ", "") in told.replace(" ", "")
    assert "headrace dlq list" in told


def test_show_at_a_mark_of_a_transaction(desk: Desk) -> None:
    """The offset of a commit marker is within the log and holds no letter: that is said."""
    with Writer(desk.settings, transactional_id=f"{desk.settings.namespace}.t") as writer, writer.transaction():
        writer.send(desk.letter(1))
    assert desk.run("show", f"{desk.settings.topics.dlq}/0/0").exit_code == 0
    shown = desk.run("show", f"{desk.settings.topics.dlq}/0/1")
    assert (shown.exit_code, "mark of a transaction" in shown.stderr) == (3, True)


def test_no_letters_and_no_match_are_told_apart(desk: Desk) -> None:
    """Without a filter an empty topic is said to hold none; with one, that none matches. Both exit 3."""
    for arguments, says in ((("stats",), "there are no dead letters"), (("list", "--class", "auth"), "no dead letter matches")):
        done = desk.run(*arguments)
        assert (done.exit_code, done.stderr.strip()) == (3, says)
