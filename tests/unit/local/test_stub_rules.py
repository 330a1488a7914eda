"""Claims about the stub's rules: who meets a fault, what it gets, and how a wrong rule is refused."""

from __future__ import annotations

import email.utils
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.local.stub.answer import answer_text
from headrace.local.stub.call import BadCall, Call, parse_call
from headrace.local.stub.draw import draw
from headrace.local.stub.render import render
from headrace.local.stub.rule import DELIVERIES, Action, Latency, Match, Rule
from headrace.local.stub.ruleset import RuleSet, fault_for, load_rules, parse_rules
from headrace.local.stub.scenarios import SCENARIOS, scenario
from headrace.local.stub.signals import SIGNALS

CALL = Call("chat", "m", "Why do rivers bend?")
IDS = [f"req-{n}" for n in range(20_000)]
NOW_S = 1_750_000_000.25


def _name(rule: Rule | None) -> str | None:
    return None if rule is None else rule.name


def test_the_same_id_always_draws_the_same_number() -> None:
    """A draw depends on seed, id and salt alone, and on each of them."""
    assert draw(1, "a") == draw(1, "a")
    assert len({draw(1, "a"), draw(2, "a"), draw(1, "b"), draw(1, "a", "latency:1")}) == 4


def test_draws_are_uniform() -> None:
    """Every tenth of [0, 1) gets a tenth of the ids, within five standard deviations."""
    tenths = [int(draw(7, request_id) * 10) for request_id in IDS]
    assert all(abs(tenths.count(tenth) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5 for tenth in range(10))


@pytest.mark.parametrize(("name", "share"), [("busy", 0.12), ("stuck", 0.04), ("flaky", 0.08)])
def test_trade_gives_each_fault_its_share(name: str, share: float) -> None:
    """The shares of the trade scenario are met exactly, not thinned by the rules before them."""
    rules = RuleSet(scenario("trade"), seed=5)
    met = sum(_name(rules.choose(request_id)) == name for request_id in IDS)
    assert abs(met / len(IDS) - share) < 0.012


def test_trade_heals_by_itself_but_for_the_stuck() -> None:
    """On the second call only the stuck ids meet a fault, and they are those that met it on the first."""
    trade = RuleSet(scenario("trade"), seed=5)
    stuck = {i for i in IDS if _name(trade.choose(i)) == "stuck"}
    assert stuck == {i for i in IDS if trade.choose(i, call=2) is not None}
    assert stuck


def test_a_broken_prompt_is_refused_whatever_the_id_draws() -> None:
    """The marker comes before every share."""
    found = {_name(fault_for(5, i, scenario("trade"), prompt="a [broken] one")) for i in IDS[:500]}
    assert found == {"broken"}


def test_shares_do_not_overlap_unless_an_offset_says_so() -> None:
    """Two halves split the ids; with offset 0 both meet the same half, each on its own call."""
    halves = [
        Rule(name="a", match=Match(share=0.5), action=Action()),
        Rule(name="b", match=Match(share=0.5), action=Action()),
    ]
    assert {_name(fault_for(1, i, halves)) for i in IDS[:200]} == {"a", "b"}
    twice = [
        Rule(name="a", match=Match(share=0.5, first=1), action=Action()),
        Rule(name="b", match=Match(share=0.5, offset=0, attempts=frozenset({2})), action=Action()),
    ]
    for i in IDS[:200]:
        pair = (_name(fault_for(1, i, twice)), _name(fault_for(1, i, twice, call=2)))
        assert pair in {("a", "b"), (None, None)}


def test_shares_beyond_one_are_refused_by_name() -> None:
    """Rules whose shares do not fit name the rule, the field and the remedy."""
    rules = [Rule(name=n, match=Match(share=0.6), action=Action()) for n in "ab"]
    with pytest.raises(ConfigError, match=r"rules\.1\.match\.share: rule 'b' ends at 1\.200.*offset"):
        RuleSet(rules, seed=1)


@pytest.mark.parametrize(
    ("match", "meets", "misses"),
    [
        (Match(model="m"), {"model": "m"}, {"model": "n"}),
        (Match(endpoint="responses"), {"endpoint": "responses"}, {"endpoint": "chat"}),
        (Match(prompt_contains="xy"), {"prompt": "wxyz"}, {"prompt": "x y"}),
        (Match(request_ids=frozenset({"r"})), {}, {"request_id": "s"}),
        (Match(attempts=frozenset({1, 3})), {"call": 3}, {"call": 2}),
        (Match(first=2), {"call": 2}, {"call": 3}),
        (Match(from_s=1, until_s=2), {"at_s": 1.0}, {"at_s": 2.0}),
    ],
)
def test_each_condition_decides(match: Match, meets: dict[str, Any], misses: dict[str, Any]) -> None:
    """A rule meets a call that fulfils its condition and no other; a time window takes its start and not its end."""
    rules = RuleSet([Rule(name="r", match=match, action=Action())], seed=1)
    assert rules.choose(**{"request_id": "r", **meets}) is not None
    assert rules.choose(**{"request_id": "r", **misses}) is None


@pytest.mark.parametrize(
    ("rule", "field", "says"),
    [
        ({"name": "x", "action": "rate_limitd"}, "rules.0.action.signal", "did you mean rate_limited"),
        ({"name": "x", "action": "hung"}, "rules.0.action.signal", "did you mean hang"),
        ({"name": "x", "action": "hang", "match": {"shares": 1}}, "rules.0.match.shares", "unknown field"),
        ({"name": "x", "action": "hang", "match": {"share": 1.5}}, "rules.0.match.share", "less than or equal to 1"),
        ({"name": "x", "action": "hang", "match": {"offset": 0.5}}, "rules.0.match", "give share too"),
        ({"name": "x", "action": "hang", "match": {"from_s": 2, "until_s": 1}}, "rules.0.match", "before until_s"),
        ({"name": "x", "action": "hang", "match": {"first": 1, "attempts": [1]}}, "rules.0.match", "not both"),
        ({"name": "x", "action": {"latency": {}}}, "rules.0.action.latency", "exactly one of"),
        ({"name": "x", "action": {"latency": {"uniform_ms": [9, 1]}}}, "rules.0.action.latency", "low must not"),
        ({"name": "x", "action": {"headers": {"x": "a\r\nb: c"}}}, "rules.0.action.headers", "one line"),
        ({"name": "x y", "action": "hang"}, "rules.0.name", "match pattern"),
        ({"name": "x"}, "rules.0.action", "is missing"),
    ],
)
def test_a_wrong_rule_names_its_field(rule: dict[str, object], field: str, says: str) -> None:
    """Each fault is one line: the path of the field, then what is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        parse_rules([rule])
    assert any(fault.startswith(f"{field}: ") and says in fault for fault in caught.value.faults), caught.value.faults


@pytest.mark.parametrize("document", ["rules", None, {"rule": []}, {"rules": [], "x": 1}, {"rules": 3}, {}])
def test_what_is_no_list_of_rules_is_refused(document: object) -> None:
    """Neither a scalar nor an unknown key is taken for an empty script."""
    with pytest.raises(ConfigError):
        parse_rules(document)


def test_a_name_is_used_once() -> None:
    """Totals are kept by rule name, so a doubled one is refused."""
    with pytest.raises(ConfigError, match=r"rules\.1\.name: 'x' is used twice"):
        parse_rules([{"name": "x", "action": "hang"}, {"name": "x", "action": "reset"}])


def test_a_file_of_rules_is_read_as_yaml_or_json(tmp_path: Path) -> None:
    """The same script in both notations is the same rules."""
    rules = [{"name": "x", "match": {"share": 0.1, "attempts": [1, 2]}, "action": {"signal": "slow_down"}}]
    (tmp_path / "r.json").write_text(json.dumps({"rules": rules}))
    (tmp_path / "r.yaml").write_text("- name: x\n  match: {share: 0.1, attempts: [1, 2]}\n  action: slow_down\n")
    assert load_rules(tmp_path / "r.json") == load_rules(tmp_path / "r.yaml") == parse_rules(rules)


@pytest.mark.parametrize("text", ["- name: [", "just words", "- {name: x, action: nonsense}", "\x00"])
def test_a_file_that_is_no_rules_is_named(tmp_path: Path, text: str) -> None:
    """The refusal names the file, whether its syntax or its content is wrong."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_rules(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_rules(tmp_path / "absent.yaml")


def test_latencies_have_the_shape_they_say() -> None:
    """Fixed is fixed; uniform keeps its bounds; half of a lognormal lies below its median, with a long tail."""
    chances = [draw(3, request_id, "latency:1") for request_id in IDS]
    assert {Latency(fixed_ms=20).seconds(c) for c in chances[:100]} == {0.02}
    uniform = [Latency(uniform_ms=(10, 30)).seconds(c) for c in chances]
    assert 0.01 <= min(uniform) < 0.0105
    assert 0.0295 < max(uniform) < 0.03
    lognormal = [Latency(median_ms=100, sigma=0.8).seconds(c) for c in chances]
    assert statistics.median(lognormal) == pytest.approx(0.1, rel=0.03)
    assert statistics.mean(lognormal) == pytest.approx(0.1 * 2.718281828 ** (0.8**2 / 2), rel=0.05)


@pytest.mark.parametrize(
    ("form", "after_s", "header", "text"),
    [
        ("seconds", 1, "retry-after", "1"),
        ("seconds", 0.25, "retry-after", "0.25"),
        ("seconds", 0, "retry-after", "0"),
        ("seconds", -3, "retry-after", "-3"),
        ("ms", 1.5, "retry-after-ms", "1500"),
        ("garbage", 1, "retry-after", "soon; perhaps"),
    ],
)
def test_retry_after_takes_every_form(form: Any, after_s: float, header: str, text: str) -> None:
    """A rule chooses how the wait is told, zero, negative and garbage included."""
    reply, _ = render(Action(signal="rate_limited", retry_after=form, retry_after_s=after_s), CALL, "1", NOW_S)
    assert dict(reply.headers)[header] == text


def test_an_http_date_never_asks_for_less_than_the_rule() -> None:
    """A date has whole seconds; it is rounded up."""
    reply, _ = render(Action(signal="rate_limited", retry_after="http_date", retry_after_s=2), CALL, "1", NOW_S)
    due = email.utils.parsedate_to_datetime(dict(reply.headers)["retry-after"])
    assert 2 <= due.timestamp() - NOW_S < 3


def test_retry_after_can_be_left_out() -> None:
    """`none` sends no hint; a signal that has none by nature sends none unasked."""
    for action in (Action(signal="rate_limited", retry_after="none"), Action(signal="insufficient_quota")):
        assert not {"retry-after", "retry-after-ms"} & set(dict(render(action, CALL, "1", NOW_S)[0].headers))


@pytest.mark.parametrize("name", sorted(SIGNALS))
@pytest.mark.parametrize("endpoint", ["chat", "completions", "embeddings", "responses"])
def test_every_signal_can_be_sent_at_every_endpoint(name: str, endpoint: str) -> None:
    """The status is the table's; the body is JSON unless the signal is to be no JSON."""
    call = Call(endpoint, "m", "text", ("text",))
    reply, _ = render(Action(signal=name), call, "1", NOW_S)
    assert reply.status == SIGNALS[name].status
    assert dict(reply.headers)["x-request-id"] == "req_1"
    if name in {"html_200", "html_502", "empty_200", "empty_500"}:
        assert reply.content_type.startswith("text/html")
    elif name in {"nan_json", "truncated_json"}:
        with pytest.raises(ValueError, match=r"(?s)."):
            json.loads(reply.body, parse_constant=_refuse_constant)
    else:
        json.loads(reply.body)


def _refuse_constant(text: str) -> None:
    raise ValueError(text)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("no_choices", "choices", []),
        ("null_choices", "choices", None),
        ("finish_abort", "choices.0.finish_reason", "abort"),
        ("finish_length", "choices.0.finish_reason", "length"),
        ("finish_content_filter", "choices.0.finish_reason", "content_filter"),
        ("finish_content_filter", "choices.0.message.content", None),
        ("error_in_200", "error.code", "server_error"),
        ("vllm_model_not_found", "error.code", 404),
        ("azure_content_filter", "error.innererror.code", "ResponsibleAIPolicyViolation"),
        ("anthropic_overloaded", "error.type", "overloaded_error"),
        ("anthropic_spend_limit", "error.details.error_code", "enforced_spend_limit_reached"),
        ("insufficient_quota", "error.code", "insufficient_quota"),
        ("error_text", "error", "the request is invalid"),
        ("detail_text", "detail", "Unprocessable request"),
    ],
)
def test_signals_carry_what_tells_them_apart(name: str, path: str, value: object) -> None:
    """Each body has, at the place clients look, the value that gives the signal its meaning."""
    found: Any = json.loads(render(Action(signal=name), CALL, "1", NOW_S)[0].body)
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else found[step]
    assert found == value


@pytest.mark.parametrize("status", ["failed", "incomplete", "queued", "in_progress"])
def test_a_response_can_be_unfinished(status: str) -> None:
    """`/v1/responses` says in `status` what its 200 does not."""
    reply, _ = render(Action(signal=f"response_{status}"), Call("responses", "m", "x"), "1", NOW_S)
    assert reply.status == 200
    assert json.loads(reply.body)["status"] == status


def test_a_rule_may_word_a_signal_anew() -> None:
    """Status, message, body, headers and an echo of the prompt are the rule's to set, and leave the table as it was."""
    action = Action(signal="error_text", status=418, message="no", echo_prompt=True, should_retry=False, headers={"x-a": "b"})
    reply, _ = render(action, CALL, "1", NOW_S)
    assert (reply.status, json.loads(reply.body)) == (418, {"error": f"no Input: {CALL.prompt}"})
    assert {"x-a": "b", "x-should-retry": "false"}.items() <= dict(reply.headers).items()
    assert json.loads(render(Action(signal="error_text"), CALL, "1", NOW_S)[0].body) == {"error": "the request is invalid"}
    assert render(Action(signal="answer", body="{"), CALL, "1", NOW_S)[0].body == b"{"


def test_the_answer_is_a_function_of_the_prompt() -> None:
    """The same prompt gets the same words from any call; another prompt gets others."""
    assert answer_text("a") == answer_text("a")
    assert len({answer_text(request_id)[0] for request_id in IDS[:1000]}) == 1000


def test_max_tokens_cuts_the_answer() -> None:
    """A bound below the answer's length shortens it, is counted, and is told as `length`."""
    body = json.loads(render(Action(), Call("chat", "m", "x", max_tokens=3), "1", NOW_S)[0].body)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3
    assert len(body["choices"][0]["message"]["content"].split()) == 3


def test_an_answer_can_be_made_as_large_as_wished() -> None:
    """`answer_bytes` gives the text exactly that length."""
    body = json.loads(render(Action(answer_bytes=100_000), CALL, "1", NOW_S)[0].body)
    assert len(body["choices"][0]["message"]["content"]) == 100_000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"messages":[{"content":"x"}]}', "model"),
        (b'{"model":"m"}', "messages"),
        (b'{"model":"m","messages":[]}', "messages"),
        (b'{"model":"m","messages":["secret"]}', "messages"),
        (b'{"model":"m","messages":[{"content":"secret"}],"n":0}', "n"),
        (b'{"model":"m","messages":[{"content":"secret"}],"max_tokens":"many"}', "max_tokens"),
        (b'{"model":"m","messages":[{"content":"secret"}],"stream":true}', "stream"),
        (b'{"model":"m","messages":[' + b"[" * 500 + b"]" * 500 + b"]}", "messages"),
        (b"[" * 100_000, None),
    ],
)
def test_a_body_that_is_no_call_is_refused(body: bytes, param: str | None) -> None:
    """The refusal names the field and never repeats what was sent."""
    with pytest.raises(BadCall) as caught:
        parse_call("chat", body)
    assert caught.value.param == param
    assert "secret" not in caught.value.message


def test_a_prompt_is_read_from_all_its_parts() -> None:
    """Text parts, several messages and instructions all count towards the prompt a rule looks at."""
    chat = b'{"model":"m","messages":[{"content":"a"},{"content":[{"type":"text","text":"b"},{"type":"image_url"}]}]}'
    assert parse_call("chat", chat).prompt == "a\nb"
    assert parse_call("responses", b'{"model":"m","input":"b","instructions":"a"}').prompt == "a\nb"


def test_the_menagerie_shows_everything() -> None:
    """Each signal and each delivery that ends has a rule, and the shares fit."""
    rules = SCENARIOS["menagerie"]
    RuleSet(rules, seed=1)
    assert {rule.action.signal for rule in rules} == set(SIGNALS)
    assert {rule.action.delivery for rule in rules} == set(DELIVERIES) - {"hang", "close_idle", "endless"}
    with pytest.raises(ConfigError, match="there are healthy, trade"):
        scenario("absent")
