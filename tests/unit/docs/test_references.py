"""The reference pages against the code they describe."""

from __future__ import annotations

import re

import pytest

from headrace.config import DEFAULT_POLICIES
from headrace.errors import ErrorClass, Exit
from headrace.llm.errors import class_of
from headrace.llm.signals import Signal
from headrace.loading.variables import SHORT, understood
from headrace.schedule import next_wheel, ready_ms, wheels_for
from headrace.topics.file import ROLES, load
from tests.support.cli_reference import reference
from tests.support.pages import DOCS

DAY_S = 86_400


def rows(page: str, columns: int, header: str) -> list[list[str]]:
    """The rows of the table in `page` that begins with `header`, as cells without backticks."""
    text = (DOCS / page).read_text("utf-8")
    table = text[text.index(f"| {header} |") :].split("\n\n")[0].splitlines()[2:]
    found = [[cell.strip().replace("`", "") for cell in row.strip().strip("|").split("|")] for row in table]
    assert all(len(row) == columns for row in found), page
    return found


def test_the_command_line_page_is_what_the_commands_say() -> None:
    """docs/cli.md is what `python -m tests.support.cli_reference` makes of the code."""
    assert (DOCS / "cli.md").read_text("utf-8") == reference(), "python -m tests.support.cli_reference > docs/cli.md"


def test_every_error_class_and_what_it_may_cost() -> None:
    """The table of error classes is `DEFAULT_POLICIES`, in its order."""

    def number(value: float | None, unit: str = "") -> str:
        return "–" if value is None else f"{value:g}{unit}"

    told = {row[0]: [*row[1:5], "next of the chain" in row[5]] for row in rows("error-classes.md", 6, "class")}
    meant: dict[str, list[str | bool]] = {}
    for error_class, policy in DEFAULT_POLICIES.items():
        retried = policy.calls is None or policy.calls > 1
        hours = None if policy.in_all_s is None else policy.in_all_s / 3600
        backoff = [number(policy.base_s, " s"), number(policy.cap_s, " s")] if retried else ["", ""]
        meant[error_class.value] = [number(policy.calls), number(hours, " h"), *backoff, policy.fallback != "never"]
    assert told == meant
    assert list(told) == [error_class.value for error_class in ErrorClass]


@pytest.mark.parametrize("row", rows("error-classes.md", 3, "status"), ids=lambda row: f"{row[0]} {row[1]}")
def test_statuses_lead_to_the_class_the_page_names(row: list[str]) -> None:
    """A status alone, without anything in the body, is of the class in the rows that name no more."""
    statuses, more, told = row
    if not more:
        assert {class_of(int(status), Signal()) for status in statuses.split(",")} == {ErrorClass(told)}


def test_every_class_has_a_row_that_leads_to_it() -> None:
    """No class is without a cause on the page."""
    caused = " ".join(
        row[-1] for header, columns in (("status", 3), ("what happened", 2)) for row in rows("error-classes.md", columns, header)
    )
    without = {error_class.value for error_class in ErrorClass if error_class.value not in caused}
    assert without == {"cancelled", "rate_rule"} - {word for word in ("cancelled", "rate_rule") if word in caused}


def test_every_exit_code() -> None:
    """The table is `errors.Exit`."""
    assert [int(row[0]) for row in rows("exit-codes.md", 3, "code")] == [int(code) for code in Exit]


def test_variables_of_the_page_exist() -> None:
    """What the page calls a variable is understood, and every short name is on it."""
    text = (DOCS / "environment.md").read_text("utf-8")
    named = {name for row in rows("environment.md", 3, "variable") for name in re.findall(r"[A-Z][A-Z_]+", row[0])}
    assert named - set(understood()) == set()
    assert [name for name in SHORT if f"`{name}`" not in text] == []


def test_every_topic() -> None:
    """Names, partitions and retention are those of topics.yaml."""
    told = {row[0]: (row[1], row[2].split(",")[0], row[3]) for row in rows("topics.md", 6, "role")}
    shapes = load(None)
    days = {role: f"{(shape.number('retention.ms') or 0) // (DAY_S * 1000)} days" for role, shape in shapes.items()}
    assert told == {role: (shapes[role].name, str(shapes[role].partitions), days[role]) for role in ROLES}


@pytest.mark.parametrize("row", rows("timing-wheels.md", 3, "a delay of"), ids=lambda row: row[0])
def test_moves_on_the_wheels(row: list[str]) -> None:
    """A record with nothing in its way moves as often, and over the wheels, as the page says."""
    amount, unit = row[0].split()
    due_ms = int(float(amount) * {"s": 1, "min": 60, "h": 3_600}[unit] * 1000)
    wheels, now_ms, passed = wheels_for(DAY_S), 0, []
    while (wheel := next_wheel(due_ms - now_ms, wheels)) is not None:
        passed.append(wheel)
        now_ms = max(now_ms, ready_ms(now_ms, due_ms, wheel))
    assert row[1] == (", ".join(map(str, passed)) or "none")
    assert int(row[2]) == (len(passed) + 1 if passed else 0)
