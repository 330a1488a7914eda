"""`headrace demo`: the main job on a stack of its own, every record accounted for, and the time-outs replayed."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from headrace import log
from headrace.errors import Exit, Refused, StackError
from headrace.local.demo import tables
from headrace.local.demo.plan import Planned, healed, plan
from headrace.local.demo.stage import Stage
from headrace.local.demo.tally import Follower, Found, faults_by_kind, lateness_ms, strangers, tally
from headrace.trail import own_headers

SETTLE_S = 240.0
KILL_AT = 0.4
TABLE_WIDTH = 80  # where there is no terminal to ask
_TICK_S = 0.25
_SAY_EVERY_S = 3.0


def run(*, requests: int, workers: int, kill: bool, seed: int, keep: Path | None) -> int:
    """The whole scenario; an exit code. Tables go to stdout, progress to stderr."""
    errors = Console(stderr=True, highlight=False)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise Refused(f"--keep {keep}: the folder is not empty; give one that is, or does not exist")
    folder = keep or Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with errors.status("Starting") as status:
            say = status.update if errors.is_terminal else _Seldom(errors).say
            with Stage(folder, seed=seed, workers=workers, say=say) as stage:
                return _Scenario(stage, plan(requests, seed), kill=kill, say=say).play()
    except KeyboardInterrupt:
        errors.print("Interrupted; everything is stopped.")
        return Exit.INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


class _Seldom:
    """Progress where there is no terminal: what is new, every few seconds at most."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""
        self._at = float("-inf")

    def say(self, text: str) -> None:
        now = time.monotonic()
        if text != self._said and now - self._at >= (_SAY_EVERY_S if text[:1].isdigit() else 0.0):
            self._said, self._at = text, now
            self._console.print(text)


class _Scenario:
    def __init__(self, stage: Stage, plans: list[Planned], *, kill: bool, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._plans = plans
        self._kill = kill
        self._say = say
        out = Console(highlight=False)
        self._out = out if out.is_terminal else Console(highlight=False, width=TABLE_WIDTH)
        self._results = Follower(stage.settings, stage.settings.topics.results)
        self._letters = Follower(stage.settings, stage.settings.topics.dlq)

    def play(self) -> int:
        """Send, wait, account; heal, replay, wait, account again."""
        self._results.start()
        self._letters.start()
        began = time.monotonic()
        self._stage.send(self._plans)
        first = self._account("What became of each request", self._plans, after_replay=False)
        self._out.print(tables.LEGEND, style="dim")
        self._out.print(tables.lateness(self._lateness()))
        self._out.print(
            f"{len(self._plans)} requests in {time.monotonic() - began:.1f} s, {self._stage.killed} worker(s) killed on the way\n"
        )
        self._stage.heal()
        self._say("Replaying the time-outs against a healed model")
        self._stage.replay_timeouts()
        again = self._account("After the time-outs were replayed against a healed model", healed(self._plans), after_replay=True)
        return Exit.DONE if first and again else Exit.BROKEN_PROMISE

    def _account(self, title: str, plans: Sequence[Planned], *, after_replay: bool) -> bool:
        """Wait until every record has its end, and print the table; whether each is what was foretold."""
        found = self._wait(plans, after_replay=after_replay)
        self._out.print(tables.accounting(plans, found, title=title, after_replay=after_replay))
        wrong = faults_by_kind(plans, found, after_replay=after_replay)
        unknown = strangers(self._results, self._letters, plans)
        extra = sum(max(0, found[p.key].calls - p.calls) for p in plans)
        if wrong or unknown:
            self._out.print(f"[bold red]not accounted for: {dict(wrong)}; never sent, but found: {unknown[:5]}[/]")
        good = len(plans) - wrong.total()
        self._out.print(f"{good} of {len(plans)} ended as foretold; model calls beyond the script: {extra}\n")
        too_many = extra > 0 and not self._stage.killed
        return not wrong and not unknown and not too_many

    def _wait(self, plans: Sequence[Planned], *, after_replay: bool) -> dict[str, Found]:
        until = time.monotonic() + SETTLE_S
        while True:
            self._check_workers()
            found = tally(self._results, self._letters, self._stage.calls(), plans)
            ended = sum(found[p.key].is_end(p, after_replay=after_replay) for p in plans)
            self._say(self._progress(found, ended))
            if ended == len(plans) or time.monotonic() > until:
                return found
            if self._kill and not self._stage.killed and ended >= len(plans) * KILL_AT:
                self._stage.kill_worker()
                self._stage.start_worker()
            time.sleep(_TICK_S)

    def _progress(self, found: dict[str, Found], ended: int) -> str:
        completed = sum("completed" in f.results for f in found.values())
        dead = sum(bool(f.letters) and "completed" not in f.results for f in found.values())
        calls = sum(f.calls for f in found.values())
        return f"{ended}/{len(self._plans)} at their end: {completed} completed, {dead} dead, {calls} model calls"

    def _check_workers(self) -> None:
        failure = self._results.failure or self._letters.failure
        if failure is not None:
            raise failure
        if self._stage.dead_workers():
            raise StackError("a worker ended by itself; run again with --keep FOLDER and read worker-*.log there")

    def _lateness(self) -> list[int]:
        retries = []
        for record in log.scan(self._stage.settings, self._stage.settings.topics.retry):
            own = own_headers(record.headers)
            if own.get("next_retry_at", "").isdigit() and own.get("retry_count", "").isdigit() and record.key:
                retries.append((record.key.decode(), int(own["retry_count"]), int(own["next_retry_at"])))
        return lateness_ms(retries, self._stage.call_log())


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
