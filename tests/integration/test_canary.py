"""Canaries in prompts, keys, passwords and headers, through success and every kind of failure: they come out where they must, and nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
import redis
from aiohttp import web
from confluent_kafka import Message

from headrace.envelope import Request, Response
from headrace.errors import CallFailed, ConfigError, Dead, Delay, Retry
from headrace.handler import Context
from headrace.loading import load_all
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, headers_of, parsed, raw_headers
from tests.support.cli import environment, headrace
from tests.support.whole import everything

pytest_plugins = ["tests.support.fixtures"]

# Each is a word of its own, none looks like a key, and none is quoted: nothing but knowing them would find them.
PROMPT, TOOL, KEY, HEADER_KEY, PASSWORD, REDIS_PASSWORD, HEADER, METADATA, RECORD_KEY = (
    f"{name}Zaunkoenig" for name in ("Prompt", "Tool", "Key", "Header", "Sasl", "Redis", "User", "Meta", "Record")
)
SECRETS = (PROMPT, TOOL, KEY, HEADER_KEY, PASSWORD, REDIS_PASSWORD, HEADER, METADATA, RECORD_KEY)
AGENT, CHANNEL = "AgentZaunkoenig", "ChannelZaunkoenig"
EVERYTHING = (*SECRETS, AGENT, CHANNEL)
ECHOES: dict[str, dict[str, Any]] = {
    "retried": {"signal": "server_error"},
    "limited": {"signal": "rate_limited", "retry_after_s": 0.2},
    "late": {"signal": "rate_limited", "retry_after_s": 5},
    "busy": {"signal": "unavailable"},
    "refused": {"signal": "invalid_request"},
    "filtered": {"signal": "content_policy_violation"},
    "long": {"signal": "context_length_exceeded"},
    "unknown": {"signal": "model_not_found"},
    "odd": {"signal": "error_in_200"},
    "empty": {"signal": "no_choices"},
    "page": {"signal": "html_200"},
    "cut": {"delivery": "cut"},
    "reset": {"delivery": "reset"},
}
BAD = (
    f"{PROMPT} \xff\xfe".encode("latin-1"),
    json.dumps({"request_id": "dup", "prompt": PROMPT})[:-1].encode() + f',"{PROMPT}":1,"{PROMPT}":2}}'.encode(),
    json.dumps({"request_id": f"{PROMPT} {PROMPT}", "prompt": "x"}).encode(),
    json.dumps({"request_id": "b1", "prompt": [PROMPT]}).encode(),
    json.dumps({"request_id": "b2", "prompt": "x", "metadata": {METADATA: 1, "k": [METADATA]}}).encode(),
    json.dumps({"request_id": "b3", "body": {"messages": PROMPT, "stream": PROMPT}}).encode(),
    json.dumps({"request_id": "b4", "prompt": "x", "priority": PROMPT, "endpoint": PROMPT, "created_at": PROMPT}).encode(),
    json.dumps({"request_id": "b5", "prompt": "x", "next_retry_at": PROMPT, "retry_count": PROMPT}).encode(),
    json.dumps({"custom_id": "b6", "method": PROMPT, "url": f"/{PROMPT}", "body": {"input": PROMPT}}).encode(),
    json.dumps({"request_id": "b7", "body": {"model": "m", "messages": [{"content": f"{PROMPT} \ud800"}]}}).encode(),
)


def request(request_id: str) -> bytes:
    """A chat with canaries in every part of it."""
    messages = [
        {"role": "system", "content": f"You know {PROMPT} by heart."},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": json.dumps({"a": TOOL})}}]},
        {"role": "user", "content": f"Say {TOOL} and\n{PROMPT}, it's me"},
    ]
    fields = {"agent_id": AGENT, "channel": CHANNEL, "metadata": {METADATA: METADATA}}
    return orjson.dumps({"request_id": request_id, "body": {"model": "m", "messages": messages}, **fields})


def rules() -> list[Rule]:
    """Providers that repeat what they were sent, prompt, tool arguments and key, without a quotation mark."""
    message = f"Denied. The bearer of {KEY} with {HEADER_KEY} sent: You know {PROMPT} by heart. Say {TOOL} and {PROMPT}, it's me."
    made = []
    for name, action in ECHOES.items():
        echo = {} if "delivery" in action else {"message": message, "echo_prompt": True}
        first = {"first": 1} if name in ("limited", "late") else {}
        made.append(Rule.model_validate({"name": name, "match": {"request_ids": [name], **first}, "action": action | echo}))
    return made


class Collector:
    """A Sentry that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.port = 0

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.got.append(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        return web.json_response({"id": "1"})


@pytest.fixture
async def sentry() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/api/42/envelope/", collector.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.port = runner.addresses[0][1]
    yield collector
    await runner.cleanup()


def variables(bench: Bench, base_url: str, folder: Path, **more: str) -> dict[str, str]:
    """A configuration with a canary in every secret; Redis takes any password of the user that needs none."""
    quick = {"base_s": 0.05, "cap_s": 0.1, "calls": 2}
    classes = ("rate_limited", "overloaded", "server_error", "connection", "invalid_response", "internal")
    config = {
        "providers": [
            {"name": "stub", "base_url": base_url, "api_key_env": "STUB_KEY", "default_model": "m", "headers": {"X-Key": HEADER_KEY}}
        ],
        "policy": {name: quick if name != "rate_limited" else {"base_s": 0.05, "cap_s": 0.1} for name in classes},
    }
    (folder / "headrace.yaml").write_text(json.dumps(config), "utf-8")
    at = urlsplit(bench.redis_url)
    given = {
        "HEADRACE_CONFIG": str(folder / "headrace.yaml"),
        "HEADRACE_REDIS_URL": f"redis://default:{REDIS_PASSWORD}@{at.hostname}:{at.port}{at.path}",
        "HEADRACE_KAFKA_CONFIG": json.dumps({"sasl.username": "u", "sasl.password": PASSWORD, "debug": "conf"}),
        "STUB_KEY": KEY,
    }
    return environment(bench, folder, **given, **more)


class Running:
    """`headrace worker …` at debug level, and everything it writes."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        command = [sys.executable, "-m", "headrace", "worker", *arguments, "--json", "--log-level", "debug"]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = b""
        self._reader = asyncio.create_task(asyncio.to_thread(self._read))

    def _read(self) -> None:
        assert self.process.stdout is not None, "a pipe"
        for line in self.process.stdout:
            self.said += line

    async def end(self) -> int:
        """SIGTERM; its exit code, once all it wrote was read."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code."""
        try:
            code = await asyncio.to_thread(self.process.wait, 60)
        finally:
            self.process.kill()
        await self._reader
        return code

    def probes(self) -> bytes:
        """What its probes answer."""
        event = next(orjson.loads(line) for line in self.said.splitlines() if b'"health_listening"' in line)
        answers = b""
        for path in ("livez", "readyz", "status", "metrics", PROMPT):
            try:
                with urllib.request.urlopen(f"{event['address']}/{path}", timeout=10) as answer:
                    answers += answer.read()
            except urllib.error.HTTPError as error:
                answers += error.read()
        return answers


def kept(url: str, namespace: str) -> Iterator[tuple[str, bytes]]:
    """Every key of a namespace, with all that is under it."""
    client: Any = redis.Redis.from_url(url)
    try:
        for key in client.scan_iter(f"*{namespace}*", count=1_000):
            kind = client.type(key)
            value = client.get(key) if kind == b"string" else repr(client.hgetall(key)).encode() if kind == b"hash" else client.dump(key)
            yield key.decode(), value or b""
    finally:
        client.close()


def ours(message: Message) -> str:
    """The headers that are ours."""
    return repr([h for h in raw_headers(message) if h[0].startswith("headrace_")])


def none_of(words: tuple[str, ...], text: str | bytes, where: str) -> None:
    """Fail, with the surroundings, where one of the words stands."""
    found = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    for word in words:
        at = found.find(word)
        assert at < 0, f"{word} in {where}: …{found[max(0, at - 300) : at + 100]}…"


async def judge_records(bench: Bench) -> None:
    """Headers, keys and errors of everything that was written."""
    for role in ("retry", "later", "dlq"):
        for message in await everything(bench, role):
            none_of(EVERYTHING, ours(message), f"headers in {role}")
    for message in await everything(bench, "results"):
        none_of(SECRETS, repr(message.headers()) + repr(message.key()), "headers or key of a result")
        none_of(SECRETS, repr(parsed(message)["error"]) + repr(parsed(message)["attempts"]), "an error in the results")


def judge_redis(bench: Bench) -> None:
    """Keys and values: of an answer that is handed over the response stays in Redis, by design; there is none here."""
    seen = list(kept(bench.redis_url, bench.namespace))
    assert len(seen) > 5
    for key, value in seen:
        none_of(EVERYTHING, key, "a Redis key")
        none_of(EVERYTHING, value, f"the value of {key}")


@pytest.mark.timeout(180)
async def test_canaries_come_out_nowhere(bench: Bench, stub: StubLLM, sentry: Collector, tmp_path: Path) -> None:
    """Success, retries, wheels, dead letters of every cause, alerts, probes, Redis and the desk: no prompt, tool argument, key, password, header or metadata."""
    stub.set_rules(rules())
    env = variables(bench, stub.base_url, tmp_path, SENTRY_DSN=f"http://public@127.0.0.1:{sentry.port}/42")
    ids = ["fine", *ECHOES]
    for request_id in ids:
        bench.send(request(request_id), key=RECORD_KEY.encode(), headers=[("x-user", HEADER.encode())])
    for value in BAD:
        bench.send(value, key=RECORD_KEY.encode(), headers=[("x-user", HEADER.encode())])
    bench.flush()
    worker = Running(env, "all")
    try:
        await bench.finished(ids, timeout_s=90)
        failed = len(ids) - 3 + len(BAD)
        await bench.until("dlq", failed, timeout_s=60)
        await bench.until_drained(("main", "retry", "dlq"), timeout_s=60)
        probes = await asyncio.to_thread(worker.probes)
        judge_redis(bench)
    finally:
        code = await worker.end()
    assert code == 0, worker.said[-2_000:]
    await judge_records(bench)
    none_of(EVERYTHING, worker.said, "the log")
    none_of(EVERYTHING, probes, "the probes")
    assert worker.said.count(b'"dead_letter"') == failed
    assert b"librdkafka" in worker.said or b"sasl.password" in worker.said or b"CONF" in worker.said, "the client told its configuration"
    assert sentry.got
    for envelope in sentry.got:
        none_of(EVERYTHING, envelope, "an alert")
    completed = {r["request_id"] for r in map(parsed, await everything(bench, "results")) if r["status"] == "completed"}
    assert completed == {"fine", "limited", "late"}
    assert len({headers_of(m)["headrace_error_class"] for m in await everything(bench, "dlq")}) > 7, "of many causes"
    await _desk(bench, env)


DESK = """
import json, sys
from headrace.cli import main
for arguments in json.loads(sys.argv[1]):
    print('===', arguments, flush=True)
    try:
        main(arguments)
    except SystemExit as done:
        print('ended', done.code, flush=True)
"""


async def _desk(bench: Bench, env: dict[str, str]) -> None:
    """The commands over dead letters and requests show no content unless they are told to; agent and channel are facts of a letter."""
    position = f"{bench.names.dlq}/0/0"
    commands = [["dlq", *arguments.split()] for arguments in (
        "list", "list --json", "stats", "stats --json", f"show {position}", f"show {position} --json", "show refused", "replay",
        f"show {bench.names.dlq}/0/x", "list --class nonsense",
    )]  # fmt: skip
    lines = b"\n".join([*(value.replace(b"\n", b"") for value in BAD), request("again")])
    commands.append(["produce", "--check", "-"])
    script = [sys.executable, "-c", DESK, json.dumps(commands)]
    done = await asyncio.to_thread(
        subprocess.run, script, env=env, input=lines, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100, check=False
    )
    none_of(SECRETS, done.stdout, "what the commands say")
    assert done.stdout.count(b"ended") == len(commands), done.stdout[-2_000:]
    assert done.stdout.count(b"request_id") > 10, "something was shown"


async def failing(request: Request, ctx: Context) -> Response:
    """A handler that tells what it was given in whatever it raises."""
    text = f"I was given {request.body['messages'][0]['content']} and {request.body['messages'][2]['content']}"
    match request.request_id:
        case "retry":
            raise Retry(text, after=0.1)
        case "dead":
            raise Dead(text)
        case "delay" if ctx.attempt == 1:
            raise Delay(text, until=datetime.now(UTC))
        case "group":
            raise ExceptionGroup(text, [ValueError(text)])
        case "exit":
            sys.exit(text)
        case "key":
            raise KeyError(text)
        case "unicode":
            raise UnicodeDecodeError("utf-8", text.encode(), 0, 1, text)
        case "llm":
            try:
                return await ctx.llm.call(request)
            except CallFailed as error:
                raise RuntimeError(text) from error
        case _:
            raise ValueError(text)


@pytest.mark.timeout(120)
async def test_what_a_handler_raises_tells_nothing(bench: Bench, stub: StubLLM, tmp_path: Path) -> None:
    """Exceptions of a handler of one's own that quote the request, chained and in groups: retried and dead, and none of it told."""
    ids = ["retry", "dead", "group", "exit", "key", "unicode", "llm", "value"]
    stub.set_rules([Rule.model_validate({"name": "all", "action": {"signal": "server_error", "message": PROMPT, "echo_prompt": True}})])
    for request_id in ids:
        bench.send(request(request_id), key=RECORD_KEY.encode())
    bench.flush()
    env = variables(bench, stub.base_url, tmp_path)
    worker = Running(env, "all", "--handler", "tests.integration.test_canary:failing")
    try:
        await bench.finished(ids, timeout_s=60)
        await bench.until_drained(("main", "retry", "dlq"), timeout_s=40)
        judge_redis(bench)
    finally:
        code = await worker.end()
    assert code == 0, worker.said[-2_000:]
    await judge_records(bench)
    none_of(EVERYTHING, worker.said, "the log")
    assert len(await everything(bench, "dlq")) == len(ids)


CRASHES = {
    "settle": "from headrace.settle import Settler as T; name = '_gather'",
    "decode": "from headrace.waiting import InOrder as T; name = 'add'",
    "outputs": "from headrace.outputs import Outputs as T; name = 'of'",
    "admit": "from headrace.guard import Guard as T; name = 'admit'",
    "marks": "from headrace.guard import Guard as T; name = 'settled'",
}
CRASHING = """
import sys
{target}
real = getattr(T, name)
def crash(self, *given, **named):
    if name == '_gather' and not self._queue:
        return real(self, *given, **named)
    raise RuntimeError('quoting ' + {quoted!r}) from ValueError({quoted!r})
setattr(T, name, crash)
from headrace.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("where", CRASHES)
@pytest.mark.timeout(90)
async def test_a_crash_quotes_nothing(bench: Bench, stub: StubLLM, tmp_path: Path, where: str) -> None:
    """An exception nobody foresaw, that quotes a record, in each part of the engine: the process says where it was, and not what it quoted."""
    bench.send(request("r"))
    bench.flush()
    env = variables(bench, stub.base_url, tmp_path, HEADRACE_GRACE_S="0")
    script = CRASHING.format(target=CRASHES[where], quoted=f"You know {PROMPT} by heart, {KEY}")
    command = [sys.executable, "-c", script, "worker", "main", "--json", "--log-level", "debug"]
    worker = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = b""
    try:
        async with asyncio.timeout(60):
            assert worker.stdout is not None, "a pipe"
            while b"RuntimeError (" not in said and (some := await worker.stdout.read(65_536)):
                said += some
            if worker.returncode is None and where == "decode":  # asyncio tells of it, and goes on
                worker.send_signal(signal.SIGTERM)
            said += await worker.stdout.read()
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.wait()
    none_of(SECRETS, said, "what the process said")
    assert b"RuntimeError (" in said
    assert b"Traceback" in said
    assert worker.returncode != 0 or where == "decode"


BROKEN = f'{{"sasl.password": "{PASSWORD}"'
FAULTS: dict[str, dict[str, str]] = {
    "redis away": {"HEADRACE_REDIS_URL": f"redis://u:{PASSWORD}@127.0.0.1:1/0"},
    "redis port": {"HEADRACE_REDIS_URL": f"redis://u:{PASSWORD}@127.0.0.1:{PASSWORD}/0"},
    "redis scheme": {"HEADRACE_REDIS_URL": f"http://u:{PASSWORD}@127.0.0.1:1"},
    "redis bracket": {"HEADRACE_REDIS_URL": f"redis://u:{PASSWORD}@[::1"},
    "redis database": {"HEADRACE_REDIS_URL": f"redis://u:{PASSWORD}@127.0.0.1:1/{PASSWORD}"},
    "redis query": {"HEADRACE_REDIS_URL": f"redis://127.0.0.1:1/0?password={PASSWORD}&socket_timeout={PASSWORD}"},
    "redis user": {"HEADRACE_REDIS_URL": "{redis}"},
    "kafka no JSON": {"HEADRACE_KAFKA_CONFIG": BROKEN},
    "kafka list": {"HEADRACE_KAFKA_CONFIG": f'["{PASSWORD}"]'},
    "kafka value": {"HEADRACE_KAFKA_CONFIG": json.dumps({"sasl.password": [PASSWORD], "sasl.username": {"a": PASSWORD}})},
    "kafka mechanism": {"HEADRACE_KAFKA_CONFIG": json.dumps({"security.protocol": PASSWORD, "sasl.mechanism": PASSWORD})},
    "kafka number": {"HEADRACE_KAFKA_CONFIG": json.dumps({"socket.timeout.ms": PASSWORD, "ssl.key.pem": PASSWORD, "ssl.key.password": PASSWORD})},
    "kafka login": {"HEADRACE_KAFKA_CONFIG": json.dumps(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": PASSWORD}
    )},
    "kafka address": {"HEADRACE_KAFKA_BOOTSTRAP": f"u:{PASSWORD}@127.0.0.1:1"},
    "model address": {"OPENAI_BASE_URL": f"http://u:{PASSWORD}@127.0.0.1:1/v1", "HEADRACE_CONFIG": "/dev/null", "OPENAI_API_KEY": KEY},
    "sentry": {"SENTRY_DSN": f"https://{PASSWORD}/x"},
    "sentry scheme": {"SENTRY_DSN": f"{PASSWORD}://k@h/1"},
    "two secrets": {"STUB_KEY": KEY, "OPENAI_API_KEY": KEY, "OPENAI_API_KEY_FILE": "/dev/null"},
    "grace": {"HEADRACE_GRACE_S": PASSWORD},
    "namespace": {"HEADRACE_NAMESPACE": f"{PASSWORD} {PASSWORD}"},
}  # fmt: skip
DOCUMENTS = {
    "unclosed": f'providers:\n  - api_key: "{PASSWORD}\n',
    "list": f"providers:\n  - api_key: [{PASSWORD}\n",
    "alias": f"providers:\n  - api_key: *{PASSWORD}\n",
    "tag": f"providers:\n  - api_key: !{PASSWORD} x\n",
    "percent": f"providers:\n  - api_key: %{PASSWORD}\n",
    "twice": f"providers:\n  - api_key: {PASSWORD}\n    api_key: {PASSWORD}\n",
    "type": f"providers:\n  - api_key: [{PASSWORD}]\n    headers: {PASSWORD}\n    timeout_s: {PASSWORD}\nredis: {PASSWORD}\nkafka: [{PASSWORD}]\n",
    "section": f"redis:\n  url: {{a: {PASSWORD}}}\nkafka:\n  config: {PASSWORD}\nsentry_dsn: [{PASSWORD}]\n",
    "control": f'providers:\n  - api_key: "{PASSWORD}\x01"\n',
}


@pytest.mark.timeout(120)
async def test_faults_of_the_configuration_repeat_no_secret(bench: Bench, tmp_path: Path) -> None:
    """Every way to get an address, a login or a file wrong is told by field, without the value, tracebacks with their causes included."""
    base = variables(bench, "http://127.0.0.1:1/v1", tmp_path)
    at = urlsplit(bench.redis_url)
    cases = {name: base | given for name, given in FAULTS.items()}
    cases["redis user"]["HEADRACE_REDIS_URL"] = f"redis://nobody:{PASSWORD}@{at.hostname}:{at.port}/0"
    for name, document in DOCUMENTS.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(document, "utf-8")
        cases[f"file {name}"] = base | {"HEADRACE_CONFIG": str(path)}
    started = []
    for name, env in cases.items():
        try:
            load_all(env)
        except ConfigError as error:
            none_of(SECRETS, "".join(traceback.format_exception(error)), name)
        else:
            started.append(name)
            debug = {"HEADRACE_DEBUG": "1"} if len(started) % 2 else {}
            done = await headrace(env | debug, "worker", "main")
            assert done.returncode != 0, name
            assert len(done.stdout + done.stderr) > 10, name
            none_of(SECRETS, done.stdout + done.stderr, name)
    assert {"redis away", "redis user", "kafka login"} <= set(started) < cases.keys()
