"""What the help and docs/stub-llm.md say of rules is what the stub does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headrace.errors import ConfigError
from headrace.local.stub import SCENARIOS, fault_for, parse_rules
from headrace.local.stub import manual as text
from headrace.local.stub.rule import DELIVERIES, Match
from headrace.local.stub.signals import SIGNALS, SPOKEN_OF_AS
from headrace.local.stub_llm import main

DOCUMENT = Path(__file__).parents[3] / "docs" / "stub-llm.md"


def test_the_documents_rules_do_what_they_say() -> None:
    """The example of the document is that of the help; each of its rules meets the calls its comment names."""
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert example == text.EXAMPLE
    rules = parse_rules(yaml.safe_load(example))
    ids = [f"r-{n}" for n in range(2_000)]
    busy = [i for i in ids if (met := fault_for(1, i, rules)) and met.name == "busy"]
    stuck = [i for i in ids if (met := fault_for(1, i, rules, call=3)) and met.name == "stuck"]
    assert 140 < len(busy) < 260
    assert 60 < len(stuck) < 140
    for call in ({"prompt": "a [broken] one", "name": "broken"}, {"at_s": 61.0, "name": "outage"}):
        name = call.pop("name")
        met = fault_for(1, next(i for i in ids if fault_for(1, i, rules) is None), rules, **call)
        assert met is not None
        assert met.name == name


def test_the_help_names_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Every scenario, signal, delivery and field of a match stands in `headrace stub-llm --help`."""
    with pytest.raises(SystemExit):
        main(["--help"])
    words = set(re.findall(r"[\w]+", capsys.readouterr().out))
    assert words >= {*SCENARIOS, *SIGNALS, *DELIVERIES, *Match.model_fields}
    assert set(text.SCENARIOS) == set(SCENARIOS)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"action": "rate_limit"}, "did you mean rate_limited"),
        ({"action": "timeout"}, "did you mean hang?"),
        ({"action": 429}, "did you mean rate_limited?"),
        ({"action": "zzz"}, "`headrace stub-llm --help` lists them"),
        ({"action": {"delivery": "hangs"}}, "no such delivery; there are whole, hang"),
        ({"action": "hang", "match": {"shares": 1}}, "unknown field; did you mean 'share'?"),
        ({"action": "hang", "when": 1}, "unknown field; known: name, match, action"),
    ],
)
def test_a_wrong_name_gets_the_right_one(rule: dict[str, object], says: str) -> None:
    """A signal, delivery or field that does not exist is answered with the one that was meant, or with where they are listed."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_rules([{"name": "a", **rule}])


def test_every_spoken_name_leads_to_a_real_one() -> None:
    """What is suggested for an error class or a status exists, and none of them is itself a name."""
    assert {name for name in SPOKEN_OF_AS.values() if name not in SIGNALS and name not in DELIVERIES} == set()
    assert set(SPOKEN_OF_AS) & (set(SIGNALS) | set(DELIVERIES)) == set()


@pytest.mark.parametrize("port", ["99999", "-1", "x"])
def test_a_port_out_of_range_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The range is said, and the exit code is 2."""
    with pytest.raises(SystemExit) as ended:
        main([f"--port={port}"])
    assert ended.value.code == 2
    assert "give 1 to 65535" in capsys.readouterr().err
