"""A shell that a page's blocks are put to one after another, in a scratch folder, with the names of the page's own topics in them."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.cli import OURS, TOPICS_YAML
from tests.support.pages import ROOT, Block

WAIT_S = 90.0
_NAMES = re.compile(r"\bllm_(?:requests_(?:main|retry_later|retry|dlq)|results)\b")
_LEFT_OUT = {"topics.yaml", "docs", "headrace.yaml", "dist", "build", "site"}


class PageShell:
    """One bash for a page. A block that fails, or does not end within WAIT_S, raises AssertionError with what it said."""

    def __init__(self, folder: Path, variables: Mapping[str, str], namespace: str) -> None:
        self.folder = folder
        self._prefix = f"{namespace}_"
        self._count = 0
        self.said = ""
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") and entry.name not in _LEFT_OUT:
                (folder / entry.name).symlink_to(entry)
        (folder / "topics.yaml").write_text(self.ours(TOPICS_YAML.read_text("utf-8")), "utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, "PYTHON", "COV"))}
        read_end, self._write_end = os.pipe()
        self._status = read_end
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-s"],
            cwd=folder,
            env=inherited | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._write_end,),
            start_new_session=True,  # everything a page starts ends with it
        )
        os.close(self._write_end)
        self._tell("set -e -o pipefail\n")

    def close(self) -> None:
        """End the shell and whatever the page left running."""
        with suppress(ProcessLookupError):  # the last of them has ended
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(10)
        assert self._shell.stdin is not None, "a pipe"
        self._shell.stdin.close()
        os.close(self._status)

    def ours(self, text: str) -> str:
        """The text with this page's topics in place of the default ones."""
        return _NAMES.sub(lambda found: self._prefix + found[0], text)

    def theirs(self, text: str) -> str:
        """The text with the default names again."""
        return text.replace(self._prefix, "")

    def write(self, name: str, text: str) -> None:
        """A file of the page, in its folder."""
        path = self.folder / name
        assert path.resolve().is_relative_to(self.folder.resolve()), f"{name} is part of the repository"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.ours(text), "utf-8")

    def run(self, block: Block) -> str:
        """Run a block to its end and return its output, stdout first."""
        script = self._script(block.text)
        expected = int(block.mark("exits") or 0)
        out, err = script.with_suffix(".out"), script.with_suffix(".err")
        source = f". {script} </dev/null >{out} 2>{err}"
        if expected:
            source = f"set +e; {source}; status=$?; set -e"
        self._tell(f"status=0; {source}\necho $status >&{self._write_end}\n")
        status = self._answer()
        self.said = self.theirs(_text(out) + _text(err))
        assert status == str(expected), (
            f"line {block.line}: {status}, not exit code {expected}\n{block.text}\n{self.said[-3000:]}{self._logs()}"
        )
        return self.said

    def behind(self, block: Block, until: str) -> None:
        """Run a block as in another terminal, until it prints `until`; what it exports is set here, as if pasted."""
        script = self._script(block.text)
        out = script.with_suffix(".out")
        self._tell(f'(. {script} </dev/null >{out} 2>&1; echo "ended with $?" >>{out}) &\necho 0 >&{self._write_end}\n')
        assert self._answer() == "0", f"line {block.line}: the shell has ended"
        deadline = time.monotonic() + WAIT_S
        while until not in (text := _text(out)):
            ended = re.search(r"^ended with \d+$", text, re.MULTILINE)
            said = f"line {block.line}: no {until!r}\n{block.text}\n{self.theirs(text)[-3000:]}"
            assert ended is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)  # a file tells nobody that it has grown
        self._tell(f"eval \"$(grep '^export ' {out} || true)\"\necho 0 >&{self._write_end}\n")
        assert self._answer() == "0", f"line {block.line}: what it exports cannot be set"

    def _script(self, text: str) -> Path:
        self._count += 1
        script = self.folder / f".block-{self._count}.sh"
        script.write_text(self.ours(text), "utf-8")
        return script

    def _tell(self, line: str) -> None:
        assert self._shell.stdin is not None, "a pipe"
        self._shell.stdin.write(line.encode())
        self._shell.stdin.flush()

    def _answer(self) -> str:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._status], [], [], 0.2)
            if ready and (answer := os.read(self._status, 64)):
                return answer.decode().strip()
            if (code := self._shell.poll()) is not None:  # what it left behind holds the pipe open, so its end is not told there
                return f"exit code {code}"
        return f"no end within {WAIT_S:g} s"

    def _logs(self) -> str:
        return "".join(f"\n--- {log.name}\n{self.theirs(_text(log))[-2000:]}" for log in self.folder.glob("*.log"))


@contextmanager
def page_shell(folder: Path, variables: Mapping[str, str], namespace: str) -> Iterator[PageShell]:
    """Give a shell, and end what it started."""
    shell = PageShell(folder, variables, namespace)
    try:
        yield shell
    finally:
        shell.close()


def shows(said: str, expected: str) -> str | None:
    """The first line of `expected` that `said` does not have, in this order; `…` stands for anything, blanks are one."""
    left = iter(" ".join(line.split()) for line in said.splitlines())
    for line in filter(None, (" ".join(one.split()) for one in expected.splitlines())):
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
        if line != "…" and not any(pattern.fullmatch(one) for one in left):
            return line
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:  # the shell has not opened it yet
        return ""
