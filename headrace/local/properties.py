"""What the local broker is configured with: one node, on loopback, quick to start. Durable settings are for production."""

from __future__ import annotations

from pathlib import Path

LOG4J = """status=error
appender.file.type=File
appender.file.name=file
appender.file.fileName={log}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{ISO8601}} %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""

COMMON = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "offsets.topic.num.partitions": "4",  # few: each is a file to open at start
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A killed member's partitions are taken over after 6 s, not 45.
    "group.consumer.min.session.timeout.ms": "5000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "message.max.bytes": "10485760",  # results of 8 MiB and their headers
    "replica.fetch.max.bytes": "10485760",
}


def broker_properties(data: Path, port: int, controller_port: int) -> dict[str, str]:
    """Return the server properties of a node that listens on loopback only."""
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    return {
        **COMMON,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "log.dirs": str(data),
    }
