"""The table of the smallest rights, held to a real authorizer: with exactly them each part does all its work, and none of them is idle."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

import pytest

from headrace import topics
from headrace.errors import ConfigError
from headrace.topics.permissions import Permissions
from headrace.topics.rights import PARTS, Right, rights_of
from tests.support.bench import Bench
from tests.support.parts import COMMANDS, FAULTY, LANES, Parts
from tests.support.secured import SecuredKafka, secured_kafka
from tests.support.stub import PatientStub

# Kafka's client demands a group id of a reader in no group, and asks for its coordinator: refused, and no harm.
_IDLE_GROUP = re.compile(r"Operation = DESCRIBE .*Group:LITERAL:[\w-]+\.(open|scan|results) ", re.IGNORECASE)
# What the lanes need in cases that the work below does not bring about: after Redis has lost its data the results are read, and where a
# copy of a request meets a claim of another lane, that lane's offsets.
UNTRIED = (("READ on topic", "-results"), ("DESCRIBE on group", ".main"), ("DESCRIBE on group", ".retry"))
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Give one broker that refuses what no ACL allows, with a user for each part."""
    with secured_kafka(tmp_path_factory.mktemp("acls"), *PARTS) as server:
        yield server


@pytest.fixture
async def parts(kafka: SecuredKafka, redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Parts]:
    """Give the parts, on topics of this test's own, each with exactly its rights."""
    bench = Bench(kafka.kafka.bootstrap, redis_url, namespace)
    async with PatientStub([FAULTY]) as stub:
        made = Parts(kafka, bench, stub, tmp_path)
        for part in PARTS:
            kafka.allow(part, rights_of(part, made.settings(part)))
        await until_allowed(made)
        yield made
    bench.close()


async def until_allowed(parts: Parts) -> None:
    """Until the broker has taken in every ACL: the controller answers a little earlier."""
    deadline = time.monotonic() + 30
    for part in PARTS:
        while missing := await asyncio.to_thread(Permissions(parts.settings(part)).missing, [part]):
            assert time.monotonic() < deadline, missing
            await asyncio.sleep(0.05)


def refused(kafka: SecuredKafka, since: int) -> list[str]:
    """What the authorizer refused, but for groups that are in no use."""
    return [line for line in kafka.denied(since) if not _IDLE_GROUP.search(line)]


async def test_with_exactly_its_rights_each_part_works(parts: Parts, kafka: SecuredKafka) -> None:
    """Lanes, client and commands do all they do, and the broker refuses them nothing."""
    mark = len(kafka.log())
    for part in (*LANES, "client", *COMMANDS):
        await parts.work(part, part)
    assert refused(kafka, mark) == []


@pytest.mark.parametrize("lane", LANES)
async def test_a_worker_without_one_of_its_rights_does_not_start(lane: str, parts: Parts, kafka: SecuredKafka) -> None:
    """Each right on a topic or group is missed at the start, by its name and with the remedy; the broker is asked for it, nothing is tried."""
    settings = parts.settings(lane)
    for right in rights_of(lane, settings):
        if right.resource == "transactional-id":
            continue
        kafka.forbid(lane, [right])
        said = await told(parts, lane, right)
        assert "headrace topics acls" in said
        kafka.allow(lane, [right])
        await until_allowed(parts)


async def told(parts: Parts, lane: str, right: Right) -> str:
    """What a worker's check says of a right, once the broker has forgotten it."""
    deadline = time.monotonic() + 30
    while not await asyncio.to_thread(Permissions(parts.settings(lane)).missing, [lane]):
        assert time.monotonic() < deadline, f"{right} is not missed"
        await asyncio.sleep(0.05)
    with pytest.raises(ConfigError, match=re.escape(f"may not {right}")) as caught:
        await asyncio.to_thread(topics.check, parts.settings(lane), parts=[lane])
    return str(caught.value)


async def test_without_its_transactional_id_a_worker_ends(parts: Parts, kafka: SecuredKafka) -> None:
    """What nobody can ask for is told at the first use: the worker ends by itself, naming the id and what to check."""
    (right,) = [one for one in rights_of("main", parts.settings("main")) if one.resource == "transactional-id"]
    kafka.forbid("main", [right])
    with pytest.raises(Exception, match=r"Transactional Id authorization failed.*check the ACLs"):
        await parts.until_ended("main")


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
async def test_no_right_is_idle(part: str, parts: Parts, kafka: SecuredKafka) -> None:
    """Without any one of them, and without the check at the start, the broker refuses something that the part asks for."""
    await parts.work("main", "main")  # so that there is something to read
    rights = rights_of(part, parts.settings(part))
    random.Random(1).shuffle(rights)
    for right in rights:
        if part in LANES and any(str(right).startswith(words) and str(right).endswith(end) for words, end in UNTRIED):
            continue
        kafka.forbid(part, [right])
        await asyncio.sleep(0.5)  # there is no asking for a right on a transactional id
        mark = len(kafka.log())
        with mock.patch.object(Permissions, "missing", return_value=[]):
            await asyncio.gather(parts.work(part, part, 8.0), return_exceptions=True)
        assert refused(kafka, mark), f"{part} works without {right}"
        kafka.allow(part, [right])
        await until_allowed(parts)
