"""A broker behind every kind of door: SASL of four mechanisms, TLS, both, and an authorizer that refuses what no ACL allows."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from headrace.local import kafka as local_kafka
from headrace.local import properties
from headrace.topics.rights import Right
from tests.support.servers import OwnKafka, own_kafka

PASSWORD = "geheim-4711"  # bait: it must appear nowhere
_JAAS = "org.apache.kafka.common.security"
_LISTENERS = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}


@dataclass(frozen=True, slots=True)
class Certificates:
    """A CA, and what it has signed: paths of PEM files. `other_ca` has signed nothing here."""

    ca: Path
    other_ca: Path
    server: Path
    client: Path
    client_key: Path

    @classmethod
    def made(cls, folder: Path) -> Certificates:
        """New ones, in the folder."""
        ca, other = trustme.CA(), trustme.CA()
        paths = [folder / name for name in ("ca.pem", "other.pem", "server.pem", "client.pem", "client.key")]
        ca.cert_pem.write_to_path(str(paths[0]))
        other.cert_pem.write_to_path(str(paths[1]))
        server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("worker.example", common_name="tls-user")
        paths[2].write_bytes(_pkcs8(server) + b"".join(blob.bytes() for blob in server.cert_chain_pems))
        paths[3].write_bytes(b"".join(blob.bytes() for blob in client.cert_chain_pems))
        paths[4].write_bytes(_pkcs8(client))
        return cls(*paths)


def _pkcs8(cert: trustme.LeafCert) -> bytes:
    """The key as the broker reads it; trustme writes the older form."""
    key = serialization.load_pem_private_key(cert.private_key_pem.bytes(), None)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


class SecuredKafka:
    """`kafka` is the broker; over its own address everybody may do anything, and the other listeners are at `address(name)`."""

    def __init__(self, kafka: OwnKafka, ports: dict[str, int], certificates: Certificates) -> None:
        self.kafka = kafka
        self.certificates = certificates
        self._ports = ports
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})

    def address(self, listener: str) -> str:
        """Of SASL, TLS or BOTH."""
        return f"127.0.0.1:{self._ports[listener]}"

    def add_scram_users(self, *names: str) -> None:
        """Users for both SCRAM mechanisms, with the one password."""
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # of a user only one may be altered at a time
            made = [UserScramCredentialUpsertion(name, ScramCredentialInfo(kind, 4096), PASSWORD.encode()) for name in names]
            for future in self.admin.alter_user_scram_credentials(made).values():
                future.result(20)

    def allow(self, user: str, rights: list[Right]) -> None:
        """Exactly these, besides what was allowed before."""
        for future in self.admin.create_acls([_binding(user, right) for right in rights]).values():
            future.result(20)

    def forbid(self, user: str, rights: list[Right]) -> None:
        """Take these away again."""
        filters = [
            AclBindingFilter(b.restype, b.name, b.resource_pattern_type, b.principal, b.host, b.operation, b.permission_type)
            for b in (_binding(user, right) for right in rights)
        ]
        for future in self.admin.delete_acls(filters).values():
            assert future.result(20), "there was no such ACL"

    def denied(self, since: int = 0) -> list[str]:
        """What the authorizer has refused, in its own words; from a length of `log` on."""
        return [line for line in self.log()[since:].splitlines() if "is Denied operation" in line or "is denied" in line.lower()]

    def log(self) -> str:
        """The broker's log."""
        return (self.kafka.data.parent / "broker.log").read_text("utf-8", "replace")


def _binding(user: str, right: Right) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL
    kinds = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}
    kind = kinds.get(right.resource, ResourceType.BROKER)
    name = "kafka-cluster" if right.resource == "cluster" else right.name
    return AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation[right.operation], AclPermissionType.ALLOW)


@contextmanager
def secured_kafka(folder: Path, *users: str) -> Iterator[SecuredKafka]:
    """Give such a broker. `users` may come in by PLAIN; SCRAM's are made by `add_scram_users`."""
    certificates = Certificates.made(folder)
    ports = {name: _free_port() for name in _LISTENERS}
    real = properties.broker_properties

    def with_doors(data: Path, port: int, controller_port: int) -> dict[str, str]:
        base = real(data, port, controller_port)
        doors = "".join(f",{name}://127.0.0.1:{number}" for name, number in ports.items())
        protocols = "".join(f",{name}:{protocol}" for name, protocol in _LISTENERS.items())
        return {
            **base,
            **_doors(certificates, users),
            "listeners": base["listeners"] + doors,
            "advertised.listeners": base["advertised.listeners"] + doors,
            "listener.security.protocol.map": base["listener.security.protocol.map"] + protocols,
        }

    with mock.patch.object(local_kafka, "broker_properties", with_doors), own_kafka() as kafka:
        yield SecuredKafka(kafka, ports, certificates)


def _doors(certificates: Certificates, users: tuple[str, ...]) -> dict[str, str]:
    plain = "".join(f' user_{name}="{PASSWORD}"' for name in users)
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "plain.sasl.jaas.config": f"{_JAAS}.plain.PlainLoginModule required{plain};",
        "scram-sha-256.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
        "scram-sha-512.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
        "oauthbearer.sasl.jaas.config": f'{_JAAS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
    }
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
    }
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
        **{f"listener.name.{door}.{name}": value for door in ("sasl", "both") for name, value in sasl.items()},
        **{f"listener.name.{door}.{name}": value for door in ("tls", "both") for name, value in tls.items()},
        "listener.name.tls.ssl.client.auth": "required",
    }


def unsecured_token(_config: str, user: str = "token-user", life_s: float = 3600) -> tuple[str, float]:
    """A JWT without a signature, as `kafka.oauth_token` gives it; this broker takes it."""
    now = time.time()
    parts: list[dict[str, Any]] = [{"alg": "none"}, {"sub": user, "iat": now, "exp": now + life_s}]
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return f"{head}.{body}.", now + life_s


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
