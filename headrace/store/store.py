"""Redis: claims, pauses and time, one script call a batch. The only file that imports redis; the rules are `claims`' and the scripts'.

Keys, all under one hash tag: `{namespace}:claim:<request id>`, `:replay:<replay id>`, `:pauses`, and those of `epochs`, `steps`, `orders` and `roster`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import redis.asyncio as aredis
import redis.exceptions as errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from headrace.claims import Answer, Claim, Copy, DoneMark, Lifetimes, MarkState
from headrace.errors import ConfigError, HeadraceError, StoreLost, StoreUnavailable
from headrace.store import codec
from headrace.store.connection import OtherServer, ServerRun, told_apart
from headrace.store.epochs import Epochs
from headrace.store.orders import Orders
from headrace.store.plain import Plain
from headrace.store.roster import Roster
from headrace.store.steps import Steps

BATCH = 500
BATCH_BYTES = 4 << 20
AGAIN_S = 0.05
_LUA = Path(__file__).parent / "lua"
_CHECKED = (
    "claim",
    "mark",
    "hand_over",
    "renew",
    "void",
    "pause",
    "reassert",
    "restore",
    "beat",
    "lease",
    "reopen",
    "once_begin",
    "once_end",
)
_SCRIPTS = (*_CHECKED, "enter", "control_put", "control_drop", "control_ids", "control_restore")
# by reflection: redis-py derives several (of clusters, of pipelines) from Exception alone, and their set changes
REDIS_ERRORS: tuple[type[Exception], ...] = (
    TimeoutError,
    OSError,
    *(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)
_T = TypeVar("_T")
_R = TypeVar("_R")


class ClaimStore(Protocol):
    """What admission needs of a store: `Store`, or `store_memory.MemoryStore`."""

    async def claim(self, batch: Sequence[Claim]) -> list[Answer]: ...
    async def mark(self, batch: Sequence[tuple[Claim, MarkState]]) -> list[bool]: ...
    async def hand_over(self, batch: Sequence[tuple[Claim, bytes]]) -> list[bool]: ...
    async def renew(self, batch: Sequence[Claim]) -> list[bool]: ...
    async def lapse(self, batch: Sequence[Claim]) -> list[bool]: ...
    async def void(self, batch: Sequence[tuple[str, Copy]]) -> list[bool]: ...
    async def reassert(self, batch: Sequence[Claim]) -> list[Answer]: ...
    async def restore(self, batch: Sequence[DoneMark]) -> list[bool]: ...
    async def time_ms(self) -> int: ...
    async def probe(self) -> None: ...


class Store:
    """One Redis (standalone, or what a URL of redis-py reaches). Every method raises StoreUnavailable or StoreLost.

    Everything here may safely be sent twice, so a call that got no reply is tried once more. `open` comes first, then
    `epochs.enter`: before it, every script answers that data may be lost.
    """

    def __init__(self, url: str, namespace: str, *, lifetimes: Lifetimes | None = None, timeout_s: float = 2.0) -> None:
        self._url = url
        self._prefix = f"{{{namespace}}}:"
        self._lifetimes = lifetimes or Lifetimes()
        self._timeout_s = timeout_s
        self._client: aredis.Redis | None = None
        self._scripts: dict[str, tuple[str, str]] = {}
        self._server = ServerRun()
        self.epochs = Epochs(self._run_script, self._server_run)
        self.steps = Steps(self._run, self._lifetimes.of("done"))
        self.plain = Plain(self._send, self._prefix)
        self.orders = Orders(self._run_script, self.plain)
        self.roster = Roster(self.plain)
        self.server_ms = 0
        self.timed: Callable[[float], None] = _untimed  # hears how many seconds each call took

    async def open(self) -> None:
        """Read the scripts, and make sure Redis answers. Again after a StoreUnavailable is as good."""
        prelude = (_LUA / "prelude.lua").read_text("utf-8")
        for name in _SCRIPTS:
            text = (prelude if name in _CHECKED else "") + (_LUA / f"{name}.lua").read_text("utf-8")
            # Redis names a script by its SHA-1; nothing here rests on it
            self._scripts[name] = (hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
        if self._client is None:
            pool = aredis.ConnectionPool.from_url(
                self._url, socket_timeout=self._timeout_s, socket_connect_timeout=self._timeout_s,
                health_check_interval=0, retry=Retry(NoBackoff(), 0),
            )  # fmt: skip
            pool.connection_class = told_apart(pool.connection_class, self._server)
            self._client = aredis.Redis.from_pool(pool)
        await self.time_ms()

    async def close(self) -> None:
        """Let the connections go."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def check_server(self) -> None:
        """Raise ConfigError where Redis may throw claims away to make room, or is older than 6.2."""
        memory = await self._send(lambda c: c.info("memory"))
        server = await self._send(lambda c: c.info("server"))
        policy = str(memory.get("maxmemory_policy", "unknown"))
        faults = []
        if policy != "noeviction":
            faults.append(
                f"redis: maxmemory-policy is {policy}: claims could be evicted, and requests answered twice; "
                "set it with CONFIG SET maxmemory-policy noeviction, or in the provider's parameter group"
            )
        version = tuple(int(part) for part in str(server.get("redis_version", "0")).split(".")[:2] if part.isdigit())
        if version < (6, 2):
            faults.append(f"redis: version {server.get('redis_version')} is too old; 6.2 or newer is needed")
        if faults:
            raise ConfigError(faults)

    async def claim(self, batch: Sequence[Claim]) -> list[Answer]:
        """One answer a claim, in order. Claiming again with the same token gives the same answer again."""
        answers: list[Answer] = []
        for part in _chunks(batch, BATCH):
            keys, args = codec.claim_call(part, self._lifetimes)
            answers += map(codec.answer, await self._run("claim", keys, args))
        return answers

    async def mark(self, batch: Sequence[tuple[Claim, MarkState]]) -> list[bool]:
        """Mark settled claims; False where a claim is another's by now, or gone."""
        return await self._flags("mark", batch, lambda part: codec.mark_call(part, self._lifetimes))

    async def hand_over(self, batch: Sequence[tuple[Claim, bytes]]) -> list[bool]:
        """Leave outcomes (bytes only the guard reads) for the positions' next owners; False where it is not ours."""
        return await self._flags(
            "hand_over", batch, lambda part: codec.hand_over_call(part, self._lifetimes), size=lambda item: len(item[1])
        )

    async def renew(self, batch: Sequence[Claim]) -> list[bool]:
        """Keep claims alive for another `live_ms`; False where a claim is another's by now, or gone."""
        return await self._flags("renew", batch, lambda part: codec.renew_call(part, self._lifetimes.live_ms))

    async def lapse(self, batch: Sequence[Claim]) -> list[bool]:
        """Let claims lapse now, instead of `live_ms` later: their records' next owners need not wait."""
        return await self._flags("renew", batch, lambda part: codec.renew_call(part, 0))

    async def void(self, batch: Sequence[tuple[str, Copy]]) -> list[bool]:
        """Remove claims (by request id, as a copy saw them) whose records are below the log start, unresolved."""
        return await self._flags("void", batch, codec.void_call)

    async def reassert(self, batch: Sequence[Claim]) -> list[Answer]:
        """Claim again, under a new epoch, what is held; one answer each. Also while admission is closed."""
        answers: list[Answer] = []
        for part in _chunks(batch, BATCH):
            answers += map(codec.answer, await self._run("reassert", *codec.reassert_call(part, self._lifetimes)))
        return answers

    async def restore(self, batch: Sequence[DoneMark]) -> list[bool]:
        """Write the marks of completed results again; True for those that were missing."""
        return await self._flags("restore", batch, lambda part: codec.restore_call(part, self._lifetimes, self.server_ms))

    async def register_replay(self, replay_id: str, ttl_ms: int) -> None:
        """Make a replay id known, before its first record is written."""
        await self._send(lambda c: c.set(self._prefix + codec.replay_key(replay_id), b"1", px=ttl_ms))

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool:
        """Share a pause of a target for `ttl_ms`; True if nobody had it before, and so for one alert."""
        return bool((await self._run("pause", ["pauses"], [key, str(ttl_ms), text]))[0])

    async def pauses(self) -> dict[str, str]:
        """The pauses in force, by target."""
        fields = await self._send(lambda c: cast("Awaitable[Any]", c.hgetall(self._prefix + "pauses")))
        return codec.pauses(fields, await self.time_ms())

    async def drop_pause(self, key: str) -> None:
        """End a pause early."""
        await self._send(lambda c: cast("Awaitable[Any]", c.hdel(self._prefix + "pauses", key)))

    async def time_ms(self) -> int:
        """Redis TIME in epoch ms."""
        seconds, micros = await self._send(lambda c: cast("Awaitable[Any]", c.time()))
        self.server_ms = int(seconds) * 1000 + int(micros) // 1000
        return self.server_ms

    async def probe(self) -> None:
        """Raise StoreUnavailable unless Redis takes writes: one that is full, or a replica, still tells the time."""
        await self._send(lambda c: c.set(self._prefix + "probe", b"1", px=1_000))

    async def _flags(
        self, name: str, batch: Sequence[_T], call: Callable[[Sequence[_T]], codec.Call], size: Callable[[_T], int] | None = None
    ) -> list[bool]:
        flags: list[bool] = []
        for part in _chunks(batch, BATCH, size):
            flags += map(bool, await self._run(name, *call(part)))
        return flags

    async def _run(self, name: str, keys: Sequence[str], args: Sequence[codec.Arg]) -> list[Any]:
        """Run a script under the epoch this process knows."""
        return await self._run_script(name, keys, (self.epochs.value, *args))

    async def _run_script(self, name: str, keys: Sequence[str], args: Sequence[codec.Arg]) -> list[Any]:
        """Run a script; its first answer is Redis' now. A server that forgot the script is given it again."""
        if not self._scripts:
            raise StoreUnavailable("the store is not open")
        sha, text = self._scripts[name]
        whole = [self._prefix + key for key in ("epoch", *keys)]
        words = (len(whole), *whole, *args)

        async def call(client: aredis.Redis) -> list[Any]:
            execute = cast("Callable[..., Awaitable[list[Any]]]", client.execute_command)
            try:
                return await execute("EVALSHA", sha, *words)
            except errors.NoScriptError:
                return await execute("EVAL", text, *words)

        now, *answers = await self._send(call)
        self.server_ms = now
        return answers

    async def _server_run(self) -> str:
        """The run id of the server that is there now; '' where it tells none. From then on another one is a loss."""
        if self._client is None:
            raise StoreUnavailable("the store is not open")
        self._server.forget()
        await self._client.connection_pool.disconnect(inuse_connections=False)
        await self.time_ms()
        return self._server.run_id or ""

    async def _send(self, call: Callable[[aredis.Redis], Awaitable[_R]]) -> _R:
        """Make a call, and once more where there was no reply. All errors of redis become ours here."""
        if self._client is None:
            raise StoreUnavailable("the store is not open")
        try:
            return await self._once(self._client, call)
        except StoreUnavailable:
            await asyncio.sleep(AGAIN_S)
            return await self._once(self._client, call)

    async def _once(self, client: aredis.Redis, call: Callable[[aredis.Redis], Awaitable[_R]]) -> _R:
        began = time.monotonic()
        try:
            return await call(client)
        except REDIS_ERRORS as error:
            raise map_error(error) from None
        finally:
            self.timed(time.monotonic() - began)


def _untimed(seconds: float) -> None:
    """Until somebody measures."""


def map_error(error: BaseException) -> HeadraceError:
    """What an error of redis means to Headrace. Never quotes it in full: messages may hold addresses and passwords."""
    if isinstance(error, OtherServer):
        return StoreLost("Redis was started again, or another one has taken its place: its data may be lost")
    if isinstance(error, errors.ResponseError) and str(error).startswith("HEADRACELOST"):
        return StoreLost("Redis holds another epoch than this worker knows, or is being restored: its data may be lost")
    if isinstance(error, (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)):
        return StoreUnavailable("Redis refused the credentials; check the user, password and ACL in HEADRACE_REDIS_URL")
    kind = type(error).__name__
    if isinstance(error, errors.OutOfMemoryError):
        return StoreUnavailable("Redis is out of memory and takes no writes; raise maxmemory")
    if isinstance(error, errors.ResponseError):
        # the first word is the server's error code, everything after it may quote our arguments
        code = str(error).split(" ", 1)[0][:32]
        return StoreUnavailable(f"Redis refused a command ({kind} {code if code.isupper() else ''})".replace(" )", ")"))
    if "SSL" in str(error):
        return StoreUnavailable(
            "Redis: TLS failed; check that ssl_ca_certs in HEADRACE_REDIS_URL is the CA of its certificate, and that the port speaks TLS"
        )
    return StoreUnavailable(f"Redis cannot be reached ({kind}); check HEADRACE_REDIS_URL and that it runs")


def _chunks(batch: Sequence[_T], most: int, size: Callable[[_T], int] | None = None) -> Iterator[Sequence[_T]]:
    """The batch in parts of at most `most` items and, by `size`, about BATCH_BYTES: a script blocks Redis while it runs."""
    if size is None:
        yield from (batch[i : i + most] for i in range(0, len(batch), most))
        return
    total = itertools.accumulate(map(size, batch))
    groups = itertools.groupby(zip(batch, total, itertools.count(), strict=False), lambda it: (it[1] // BATCH_BYTES, it[2] // most))
    for _, group in groups:
        yield [item for item, *_ in group]
