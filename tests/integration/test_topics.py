"""`headrace topics` against a real broker."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import orjson
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from typer.testing import CliRunner

from headrace.cli.topics import app
from headrace.errors import ConfigError, KafkaUnavailable
from headrace.loading import load
from headrace.topics import Topics, check
from headrace.topics.file import ROLES

FILE = Path(__file__).parents[2] / "topics.yaml"


class Desk:
    def __init__(self, file: Path, bootstrap: str) -> None:
        self.file = file
        self.env = {"HEADRACE_KAFKA_BOOTSTRAP": bootstrap, "HEADRACE_TOPICS": str(file)}
        self.settings = load(self.env)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def run(self, *arguments: str) -> tuple[int, list[dict[str, object]]]:
        result = CliRunner().invoke(app, [*arguments, "--json"], env=self.env)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, [orjson.loads(line) for line in result.stdout.splitlines()]

    def alter(self, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(10)

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new, 1))


@pytest.fixture
def desk(kafka: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for name in ("HEADRACE_CONFIG", "HEADRACE_TOPICS"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "topics.yaml"
    file.write_text(FILE.read_text().replace("name: llm", f"name: {namespace}-llm"))
    return Desk(file, kafka)


def test_from_nothing_to_a_worker_that_can_start(desk: Desk) -> None:
    """A dry run changes nothing and says so by its code; --execute makes topics no worker objects to; then nothing differs."""
    (missing,) = check(desk.settings).faults
    assert all(getattr(desk.settings.topics, role) in missing for role in ROLES)
    assert desk.run("apply")[0] == 4
    assert check(desk.settings).faults == (missing,)
    code, changes = desk.run("apply", "--execute")
    assert (code, [change["done"] for change in changes]) == (0, [True] * 5)
    assert desk.run("diff") == (0, [])
    facts = check(desk.settings)
    assert (facts.faults, facts.notes) == ((), ())
    assert facts.max_message_bytes[desk.settings.topics.results] == 8_388_608
    assert facts.partitions[desk.settings.topics.later] == 15


def test_growth_is_done_and_shrinking_refused(desk: Desk) -> None:
    """One apply adds partitions and lengthens retention, and lists the shrinking it leaves alone, with code 5."""
    desk.run("apply", "--execute")
    desk.edit("partitions: 10 ", "partitions: 12 ")
    desk.edit("partitions: 5\n", "partitions: 3\n")
    desk.edit("retention.ms: 1209600000", "retention.ms: 2419200000")
    code, changes = desk.run("apply", "--execute")
    kinds = {(change["kind"], change["field"], change["done"]) for change in changes}
    assert kinds == {("partitions", "partitions", True), ("refused", "partitions", False), ("config", "retention.ms", True)}
    assert code == 5
    shapes = Topics(desk.settings).shapes([desk.settings.topics.main, desk.settings.topics.retry, desk.settings.topics.results])
    assert [shape.partitions for shape in shapes.values()] == [12, 5, 10]
    assert shapes[desk.settings.topics.results].number("retention.ms") == 2_419_200_000


def test_a_worker_refuses_topics_that_break_a_promise(desk: Desk) -> None:
    """A compacted topic and a `later` without append times are faults with the remedy, and apply mends them."""
    desk.run("apply", "--execute")
    desk.alter(desk.settings.topics.dlq, "cleanup.policy", "compact")
    desk.alter(desk.settings.topics.later, "message.timestamp.type", "CreateTime")
    faults = check(desk.settings).faults
    assert len(faults) == 2
    assert all("headrace topics apply --execute" in fault for fault in faults)
    assert desk.run("show")[0] == 2
    assert desk.run("apply", "--execute")[0] == 0
    assert check(desk.settings).faults == ()


def test_a_broker_out_of_reach_is_named_soon() -> None:
    """A closed port and a port that answers nothing both end in KafkaUnavailable with address and variable, within seconds."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for address in (f"127.0.0.1:{port}", f"127.0.0.1:{mute.getsockname()[1]}"):
            begun = time.monotonic()
            with pytest.raises(KafkaUnavailable, match=f"{address}.*HEADRACE_KAFKA_BOOTSTRAP"):
                check(load({"HEADRACE_KAFKA_BOOTSTRAP": address}), timeout_s=2)
            assert time.monotonic() - begun < 6


def test_a_missing_topic_is_one_line_with_the_remedy(desk: Desk) -> None:
    """What a command says of a topic that is not there is a ConfigError of one line, as the worker's."""
    with pytest.raises(ConfigError) as caught:
        Topics(desk.settings).existing([desk.settings.topics.main])
    (line,) = caught.value.faults
    assert line.startswith(f"no topic {desk.settings.topics.main} at ")
    assert line.endswith("run `headrace topics apply --execute`")


def test_brokers_that_are_down_are_given_up_early() -> None:
    """Where nothing listens, the client's second report that all brokers are down ends the wait: long before the time-out."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(KafkaUnavailable, match="Connection refused"):
        Topics(load({"HEADRACE_KAFKA_BOOTSTRAP": f"127.0.0.1:{port}"}), timeout_s=30).cluster(["x"])
    assert time.monotonic() - began < 4
