"""Every command of README and docs/ is run, page by page, as a reader would: on a real broker, a real Redis and the stub LLM."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.local.folder import Folder
from headrace.local.process import Startup
from headrace.local.stack import start_stub
from tests.support.page_shell import PageShell, page_shell, shows
from tests.support.pages import SHELL, Block, Page, pages

RUN = [page for page in pages() if any(block.language in SHELL or block.mark("run") is not None for block in page.run)]
WORKER = Block("sh", "headrace worker all --json 2>&1 | tee worker.log\n", 0)
RULES = {"rules": [{"name": "broken", "match": {"prompt_contains": "[broken]"}, "action": "invalid_request"}]}
pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True, slots=True)
class Stack:
    """What every page finds: the servers of this session."""

    kafka: str
    redis_url: str
    model: str


@pytest.fixture(scope="module")
def stack(kafka: str, redis_url: str, stack_folder: Folder) -> Iterator[Stack]:
    """Give the session's broker and Redis, and a stub LLM."""
    stub = start_stub(stack_folder, Startup())
    yield Stack(kafka, redis_url, stub.base_url)
    stub.stop()


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_every_command_of_a_page_does_what_it_says(page: Page, stack: Stack, tmp_path: Path, namespace: str) -> None:
    """Each block ends as the page says it ends (exit code 0, unless it says otherwise), and prints what the page shows."""
    needs = [name for block in page.run if (name := block.mark("needs")) and shutil.which(name) is None]
    try:
        with page_shell(tmp_path, _variables(page, stack, tmp_path, namespace), namespace) as shell:
            _script(stack.model)
            if page.given != "nothing":
                _topics(stack.kafka, tmp_path / "topics.yaml")
            if "worker" in page.given:
                shell.behind(WORKER, '"reading"')
            for block in page.run:
                _try(shell, block)
    finally:
        _remove_topics(stack.kafka, namespace)
    if needs:
        pytest.skip(f"run but for what needs {', '.join(sorted(set(needs)))}, not on the PATH")


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param(block.mark("not run"), id=f"{page.name}:{block.line}")
        for page in pages()
        for block in page.blocks
        if block.language in SHELL and block.mark("not run") is not None
    ],
)
def test_commands_that_are_not_run(reason: str) -> None:
    """They are listed here, each with the reason that stands in the page."""
    pytest.skip(f"not run: {reason}")


def _script(model: str) -> None:
    """A page before may have changed the stub's rules."""
    put = urllib.request.Request(f"{model.removesuffix('/v1')}/_stub/rules", json.dumps(RULES).encode(), method="PUT")
    with urllib.request.urlopen(put, timeout=30) as answer:
        assert answer.status == 200


def _try(shell: PageShell, block: Block) -> None:
    program = block.mark("needs")
    if program and shutil.which(program) is None:
        return
    if block.language in SHELL:
        if (until := block.mark("until")) is not None:
            shell.behind(block, until)
        else:
            shell.run(block)
    elif block.mark("prints") is not None:
        missing = shows(shell.said, block.text)
        assert missing is None, f"line {block.line}: {missing!r} is not printed, but\n{shell.said}"
    elif block.file is not None:
        shell.write(block.file, block.text)
    elif block.mark("run") is not None:
        shell.write(".block.py", block.text)
        shell.run(Block("sh", "python .block.py\n", block.line, block.marks))


def _variables(page: Page, stack: Stack, folder: Path, namespace: str) -> dict[str, str]:
    variables = {
        "HEADRACE_TEST_KAFKA_BOOTSTRAP": stack.kafka,  # what `headrace up` takes instead of starting its own
        "HEADRACE_TEST_REDIS_URL": stack.redis_url,
        "HEADRACE_NAMESPACE": namespace,
        "HEADRACE_TOPICS": str(folder / "topics.yaml"),
        "COLUMNS": "160",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    if page.given == "nothing":
        return variables
    return variables | {
        "HEADRACE_KAFKA_BOOTSTRAP": stack.kafka,
        "HEADRACE_REDIS_URL": stack.redis_url,
        "OPENAI_BASE_URL": stack.model,
        "OPENAI_API_KEY": "stub",
        "STUB": stack.model.removesuffix("/v1"),
    }


def _topics(bootstrap: str, file: Path) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = yaml.safe_load(file.read_text("utf-8"))["topics"].values()
    config = {"min.insync.replicas": "1"}
    made = [
        NewTopic(one["name"], one["partitions"], 1, config={**{name: str(value) for name, value in one["config"].items()}, **config})
        for one in wanted
    ]
    for future in admin.create_topics(made).values():
        future.result(60)


def _remove_topics(bootstrap: str, namespace: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    theirs = [name for name in admin.list_topics(timeout=30).topics if name.startswith(f"{namespace}_")]
    for future in admin.delete_topics(theirs).values() if theirs else ():
        future.result(60)
