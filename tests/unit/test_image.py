"""What the Dockerfile promises, as far as its text shows it; the image itself is tried in tests/integration/test_containers.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from headrace.local.stub import StubLLM

ROOT = Path(__file__).parents[2]
LINES = [
    line.strip()
    for line in re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text("utf-8")).splitlines()
    if line.strip() and not line.startswith("#")
]
LAST = max(number for number, line in enumerate(LINES) if line.startswith("FROM"))
FINAL = LINES[LAST:]


def test_it_is_built_in_stages_on_a_base_of_a_fixed_minor() -> None:
    """Two stages of one base, slim, with its minor named, never `latest`."""
    assert [line for line in LINES if line.startswith("FROM")] == ["FROM python:${PYTHON} AS build", "FROM python:${PYTHON}"]
    (base,) = (line.removeprefix("ARG PYTHON=") for line in LINES if line.startswith("ARG PYTHON="))
    assert re.fullmatch(r"3\.\d+-slim-\w+", base)


def test_the_final_stage_runs_as_a_number_and_installs_nothing() -> None:
    """The user is a number that is not 0, set after everything that is copied; the stage runs no command at all, so no tool stays in it."""
    (user,) = (line.removeprefix("USER ") for line in FINAL if line.startswith("USER"))
    assert all(int(number) >= 10_000 for number in user.split(":"))
    assert FINAL.index(f"USER {user}") > max(number for number, line in enumerate(FINAL) if line.startswith("COPY"))
    assert not [line for line in FINAL if line.startswith("RUN")]


def test_versions_are_those_everything_is_tested_with() -> None:
    """The build takes constraints.txt for every pip, and none of the extras."""
    assert any("PIP_CONSTRAINT=/src/constraints.txt" in line for line in LINES[:LAST])
    assert not [line for line in LINES if re.search(r"\[(local|test)", line)]


def test_it_stops_and_is_asked_as_a_worker_is() -> None:
    """SIGTERM, the exec forms that deliver it, and a health check by a module that is in the image."""
    assert "STOPSIGNAL SIGTERM" in FINAL
    assert 'ENTRYPOINT ["headrace"]' in FINAL
    (check,) = (line for line in FINAL if line.startswith("HEALTHCHECK"))
    assert check.endswith('CMD ["python", "-m", "workers.livez"]')
    assert (ROOT / "workers" / "livez.py").is_file()


def test_only_what_is_copied_reaches_the_builder() -> None:
    """.dockerignore leaves everything out, and lets in what some COPY names: no data, no test, no secret."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    copied = {source for line in LINES if line.startswith("COPY") and "--from" not in line for source in shlex.split(line)[1:-1]}
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def test_the_stub_listens_beyond_loopback_only_when_told() -> None:
    """In a container there is no other way to be reached; elsewhere the default stands (the refusal is tested with the stub's process)."""
    StubLLM(host="0.0.0.0", beyond_loopback=True)
