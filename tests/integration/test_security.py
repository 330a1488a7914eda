"""SASL and TLS, each for real: a worker settles a record through every door, and what keeps it out is told with field and remedy."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from headrace import topics
from headrace.errors import HeadraceError, KafkaUnavailable
from headrace.loading import load
from headrace.topics.rights import rights_of
from tests.support.bench import Bench
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.fixtures import stub  # noqa: F401  pytest finds it by name
from tests.support.parts import by_plain
from tests.support.secured import PASSWORD, Certificates, SecuredKafka, secured_kafka, unsecured_token
from tests.support.stub import PatientStub

USERS = ("plain-user", "scram-user", "token-user", "tls-user")
Config = dict[str, Any]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Give one broker with every door, for the whole file."""
    with secured_kafka(tmp_path_factory.mktemp("doors"), "plain-user", "poor-user") as server:
        server.add_scram_users("scram-user")
        yield server


@pytest.fixture(scope="module")
def bench(kafka: SecuredKafka, redis_url: str) -> Iterator[Bench]:
    """Give topics on it, and every user what the main lane needs."""
    made = Bench(kafka.kafka.bootstrap, redis_url, f"doors-{uuid.uuid4().hex[:12]}")
    for user in USERS:
        kafka.allow(user, rights_of("main", made.settings("http://127.0.0.1:1/v1")))
    yield made
    made.close()


def by_tls(certificates: Certificates, **more: Any) -> Config:
    """Both sides prove who they are."""
    own = {"ssl.certificate.location": str(certificates.client), "ssl.key.location": str(certificates.client_key)}
    return {"security.protocol": "SSL", "ssl.ca.location": str(certificates.ca), **own, **more}


def by_scram(kind: str, **more: Any) -> Config:
    """The password never crosses the wire."""
    return by_plain("scram-user") | {"sasl.mechanism": f"SCRAM-SHA-{kind}", **more}


def over_tls(certificates: Certificates, config: Config) -> Config:
    """SASL inside TLS, as managed clusters have it."""
    return config | {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificates.ca)}


OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
WAYS: dict[str, tuple[str, Callable[[Certificates], Config], Config]] = {
    "PLAIN": ("SASL", lambda _: by_plain("plain-user"), {}),
    "SCRAM-SHA-256": ("SASL", lambda _: by_scram("256"), {}),
    "SCRAM-SHA-512 over TLS": ("BOTH", lambda c: over_tls(c, by_scram("512")), {}),
    "a token function": ("SASL", lambda _: OAUTH, {"oauth_token": "tests.support.secured:unsecured_token"}),
    "mutual TLS": ("TLS", by_tls, {}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_worker_settles_through_every_door(way: str, kafka: SecuredKafka, bench: Bench, stub: PatientStub) -> None:  # noqa: F811
    """With each mechanism the main lane reads, calls, and commits a result in a transaction."""
    door, config, more = WAYS[way]
    settings = bench.settings(stub.base_url, kafka=kafka.address(door), kafka_settings={"config": config(kafka.certificates), **more})
    request = f"by-{way.replace(' ', '-')}"
    bench.ask(request)
    async with Engine(settings, "main"):
        assert (await bench.finished([request], timeout_s=60))[request, "completed"] == 1


async def test_a_worker_settles_with_tokens_of_an_oidc_address(kafka: SecuredKafka, bench: Bench, stub: PatientStub) -> None:  # noqa: F811
    """`sasl.oauthbearer.method: oidc` needs no code of the user's: the client fetches its tokens over HTTP, with id and secret."""
    async with token_server() as (url, asked):
        config = OAUTH | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.client.id": "headrace",
            "sasl.oauthbearer.client.secret": PASSWORD,
        }
        settings = bench.settings(stub.base_url, kafka=kafka.address("SASL"), kafka_settings={"config": config})
        bench.ask("by-oidc")
        async with Engine(settings, "main"):
            assert (await bench.finished(["by-oidc"], timeout_s=60))["by-oidc", "completed"] == 1
        assert asked, "no token was fetched"


@asynccontextmanager
async def token_server() -> AsyncIterator[tuple[str, list[str]]]:
    """Give an address that hands out tokens, and who asked for one."""
    asked: list[str] = []

    async def token(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        return web.json_response({"access_token": unsecured_token("")[0], "token_type": "Bearer", "expires_in": 3600})

    app = web.Application()
    app.router.add_post("/token", token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}/token", asked
    await runner.cleanup()


SHUT: dict[str, tuple[str, Callable[[Certificates], Config], str]] = {
    "a wrong password": ("SASL", lambda _: by_plain("plain-user") | {"sasl.password": "falsch-0815"}, "sasl.password"),
    "a wrong SCRAM password": ("SASL", lambda _: by_scram("512") | {"sasl.password": "falsch-0815"}, "sasl.password"),
    "an unknown user": ("SASL", lambda _: by_plain("nobody"), "sasl.username"),
    "another CA": ("TLS", lambda c: by_tls(c) | {"ssl.ca.location": str(c.other_ca)}, "ssl.ca.location"),
    "no certificate of ours": ("TLS", lambda c: {"security.protocol": "SSL", "ssl.ca.location": str(c.ca)}, "ssl.certificate.location"),
    "TLS where there is none": ("SASL", by_tls, "security.protocol"),
    "no TLS where there is": ("TLS", lambda _: {}, "security.protocol"),
    "no SASL where there is": ("SASL", lambda _: {}, "security.protocol"),
    "a user without rights": ("SASL", lambda _: by_plain("poor-user"), "headrace topics acls"),
}


@pytest.mark.parametrize("what", SHUT)
async def test_what_keeps_a_worker_out_is_told(what: str, kafka: SecuredKafka, bench: Bench) -> None:
    """The error names the address, the field to change, and no password; it comes at the first check, not after a client's retries."""
    door, config, field = SHUT[what]
    settings = bench.settings("http://127.0.0.1:1/v1", kafka=kafka.address(door), kafka_settings={"config": config(kafka.certificates)})
    with pytest.raises(HeadraceError) as caught:
        await asyncio.to_thread(topics.check, settings, parts=["main"])
    text = str(caught.value)
    assert kafka.address(door) in text
    assert field in text
    assert PASSWORD not in text
    assert "falsch" not in text


@pytest.mark.parametrize(
    ("config", "code", "named"),
    [
        (by_plain("plain-user") | {"sasl.password": "falsch-0815"}, 1, "sasl.password"),
        (by_plain("poor-user"), 2, "may not WRITE on topic"),
    ],
)
async def test_a_worker_that_is_kept_out_ends(
    config: Config, code: int, named: str, kafka: SecuredKafka, bench: Bench, tmp_path: Path
) -> None:
    """`headrace worker` ends with 1 where it cannot get in and 2 where it may not do its work; nothing it writes holds the password."""
    more = {"HEADRACE_KAFKA_BOOTSTRAP": kafka.address("SASL"), "HEADRACE_KAFKA_CONFIG": json.dumps(config)}
    variables = environment(bench, tmp_path, OPENAI_BASE_URL="http://127.0.0.1:1/v1", OPENAI_API_KEY="k", **more)
    ended = await headrace(variables, "worker", "main", timeout_s=60)
    assert ended.returncode == code, ended.stderr.decode()
    assert named in ended.stderr.decode()
    assert config["sasl.password"].encode() not in ended.stdout + ended.stderr


def test_a_password_comes_from_a_file(kafka: SecuredKafka, bench: Bench, tmp_path: Path) -> None:
    """`kafka.secret_files` puts one property's value beside the others, and the broker takes it."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    config = {name: value for name, value in by_plain("plain-user").items() if name != "sasl.password"}
    (tmp_path / "headrace.yaml").write_text(
        json.dumps({"kafka": {"bootstrap": kafka.address("SASL"), "config": config, "secret_files": {"sasl.password": "password"}}})
    )
    settings = load({}, tmp_path / "headrace.yaml").model_copy(update={"topics": bench.names})
    try:
        topics.check(settings)
    except KafkaUnavailable as error:
        pytest.fail(str(error))
