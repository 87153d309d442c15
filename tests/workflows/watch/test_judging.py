"""Test verdicts on rounds of made-up answers, and the delivery of their alarms."""

import asyncio
import math
import os
import sys
from dataclasses import replace

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema import Connection, Response, Usage
from serve_eval.workflows.watch import alarming, asking, bets, job, judging
from serve_eval.workflows.watch.alarming import Delivery, deliver, delivery
from serve_eval.workflows.watch.bets import ACCURACY, FAILURES, USABLE
from serve_eval.workflows.watch.judging import CHECK, DOWN, FAILING, LEARNT, MISSES, WatchRules
from serve_eval.workflows.watch.record import Seen, State
from tests.workflows.watch.changing_endpoint import Endpoint

PROMPTS, MOST = 40, 10
RULES = WatchRules(passes=3, tolerance=0.01, max_error_rate=0.05)
MEANS = replace(RULES, round_means=True)


def _state():
    rows = [[] for _ in range(PROMPTS)], [[] for _ in range(PROMPTS)]
    return State(
        bound={},
        seed=5,
        model="m",
        chat=True,
        answers=rows[0],
        usable=rows[1],
        misses=[0] * PROMPTS,
        prompt_tokens=[50] * PROMPTS,
    )


def _play(
    state,
    value,
    rounds=1,
    *,
    rules=RULES,
    usable=lambda i: True,
    checks=None,
    tokens=20,
):
    """Return the alarms of `rounds` rounds; `value` gives each prompt's score (None: no answer)."""
    found = []
    for _ in range(rounds):
        asked = judging.questions_of(state, rules, MOST)
        values = [value(i) for i in asked]
        failed = values.count(None)
        seen = Seen(
            round=state.rounds + 1,
            started_at="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            asked=asked,
            values=values,
            usable="".join(
                "1" if v is not None and usable(i) else "0"
                for i, v in zip(asked, values, strict=True)
            ),
            prompt_tokens=[0 if v is None else tokens for v in values],
            failures={"timeout": failed} if failed else {},
            checks=checks,
        )
        found += judging.judge(state, seen, rules)
    return found


def _learnt(value, rules=RULES):
    state = _state()
    while state.accuracy is None:
        assert not _play(state, value, rules=rules)
    return state


def _half_right(i):
    return float(i % 2)


def test_the_baseline_asks_every_prompt_as_often_as_it_says():
    state = _learnt(_half_right)
    assert {len(scores) for scores in state.answers} == {RULES.passes}
    assert state.rounds == PROMPTS * RULES.passes // MOST
    assert state.accuracy.mean == 0.5
    assert 0.35 < state.accuracy.floor < 0.5
    assert not state.bets.get(ACCURACY)


def test_prompts_that_are_always_wrong_say_nothing_and_those_that_turn_wrong_do():
    state = _learnt(_half_right)
    assert not _play(state, _half_right, 300)
    assert bets.evidence(state, ACCURACY) < 0.0
    (alarm,) = _play(state, lambda i: 0.0, 10)
    assert alarm.kind == ACCURACY
    assert (
        alarm.figures["evidence_nats"]
        >= alarm.figures["limit_nats"]
        == pytest.approx(math.log(200))
    )
    assert "in the baseline it was 50.0%" in alarm.told
    assert alarm.told.endswith(" 0.0%")


@pytest.mark.parametrize("rules", [RULES, MEANS])
def test_prompts_may_change_places(rules):
    state = _learnt(_half_right, rules)
    assert not _play(state, lambda i: 1.0 - i % 2, 300, rules=rules)


def test_a_few_rounds_that_are_wrong_as_a_whole_are_many_answers_and_few_means():
    found = {}
    for rules in (RULES, MEANS):
        state = _learnt(_half_right, rules)
        _play(state, _half_right, 3, rules=rules)
        _play(state, lambda i: 0.0, 4, rules=rules)
        _play(state, _half_right, 100, rules=rules)
        found[rules.round_means] = {alarm.kind for alarm in state.alarms}
    assert found == {False: {ACCURACY}, True: set()}


def test_a_fall_is_noticed_by_the_means_of_rounds_and_each_holds_the_pools_share_of_hard_prompts():
    state = _learnt(_half_right, MEANS)
    for _ in range(20):
        asked = judging.questions_of(state, MEANS, MOST)
        assert sum(i % 2 for i in asked) == MOST // 2
        assert not _play(state, _half_right, rules=MEANS)
    (alarm,) = _play(state, lambda i: 0.0, 40, rules=MEANS)
    assert alarm.kind == ACCURACY
    few = {
        alarm.kind
        for alarm in _play(state, lambda i: 0.0, 20, rules=MEANS, usable=lambda i: i % 2 == 0)
    }
    assert few == {USABLE}


def test_a_round_that_an_older_version_drew_is_still_judged():
    """All its prompts were always wrong and are now right: a wider range than any spread subset."""
    state = _learnt(_half_right, MEANS)
    seen = Seen(
        round=state.rounds + 1,
        started_at="",
        seconds=0.0,
        asked=list(range(0, 20, 2)),
        values=[1.0] * 10,
        usable="1" * 10,
        prompt_tokens=[0] * 10,
        failures={},
    )
    assert not judging.judge(state, seen, MEANS)
    assert all(map(math.isfinite, state.bets[ACCURACY].logs))


def test_a_missing_answer_counts_as_a_right_one_in_every_bet_but_that_on_failures():
    kept, missing = _learnt(_half_right), _learnt(_half_right)
    _play(kept, lambda i: 1.0)
    alarms = _play(missing, lambda i: 1.0 if i % 4 else None)
    for kind in (ACCURACY, USABLE):
        assert bets.evidence(missing, kind) == pytest.approx(bets.evidence(kept, kind))
    assert bets.evidence(missing, FAILURES) > bets.evidence(kept, FAILURES)
    assert not alarms


def test_rounds_without_any_answer_are_no_rounds_of_the_bets():
    state = _learnt(_half_right)
    _play(state, _half_right)
    before = state.bets[ACCURACY].rounds, state.bets[ACCURACY].logs
    alarms = _play(state, lambda i: None, 30)
    assert [alarm.kind for alarm in alarms] == [DOWN, FAILURES]
    assert alarms[1].figures.items() >= {"at_most": 0.05, "this_round": 1.0}.items()
    assert (state.bets[ACCURACY].rounds, state.bets[ACCURACY].logs) == before
    assert not _play(state, _half_right)
    assert [alarm.kind for alarm in state.standing] == [FAILURES]
    assert [alarm.kind for alarm in _play(state, lambda i: None, 5)] == [DOWN]


@pytest.mark.parametrize(("further", "kinds"), [(-0.1, []), (0.15, [ACCURACY])])
def test_a_fall_by_more_than_the_tolerance_is_an_alarm_and_one_within_it_is_not(further, kinds):
    """`further`: how far the answers fall below what is tolerated."""
    rules = replace(RULES, tolerance=0.2)
    state = _learnt(lambda i: 1.0, rules)
    value = state.accuracy.floor - rules.tolerance - further
    assert [alarm.kind for alarm in _play(state, lambda i: value, 100, rules=rules)] == kinds


def test_some_failures_are_allowed():
    state = _learnt(_half_right)
    failing = iter(range(10**6))
    assert not _play(state, lambda i: None if next(failing) % 50 == 0 else _half_right(i), 400)


def test_answers_that_hold_nothing_are_an_alarm_of_their_own_also_where_few_are_right():
    state = _learnt(lambda i: 0.0)
    assert judging.blind(state, RULES)
    assert {
        alarm.kind for alarm in _play(state, lambda i: 0.0, 20, usable=lambda i: i % 2 == 0)
    } == {USABLE}


def test_a_reference_notices_what_was_wrong_from_the_start():
    rules = replace(RULES, passes=2, reference=0.9)
    state = _learnt(_half_right, rules)
    (alarm,) = _play(state, _half_right, 5, rules=rules)
    assert (alarm.kind, alarm.figures["floor"]) == (ACCURACY, 0.9)


def test_a_prompt_that_never_gets_an_answer_is_given_up():
    state = _learnt(lambda i: None if i == 7 else 1.0)
    assert state.dropped == [7]
    assert state.misses[7] == MISSES
    assert all(7 not in judging.questions_of(state, RULES, MOST) for state.rounds in range(50))


def test_tokens_are_those_that_were_counted_last_and_more_where_the_estimate_was_too_low():
    state = _state()
    _play(state, _half_right, tokens=70)
    assert state.prompt_tokens == [70] * PROMPTS
    _play(state, _half_right, tokens=60)
    assert sorted(set(state.prompt_tokens)) == [60, 70]
    for _ in range(100):  # two servers behind one endpoint, with different templates
        _play(state, _half_right, tokens=60)
        _play(state, _half_right, tokens=75)
    assert max(state.prompt_tokens) == 75


def test_only_checks_that_always_passed_at_first_are_watched():
    state = _state()
    for n in range(LEARNT + 2):
        assert not _play(
            state, _half_right, checks={"chat": "PASS", "seed": "PASS" if n else "FAIL"}
        )
    bad = {"chat": "FAIL", "seed": "FAIL"}
    for _ in range(FAILING - 1):
        assert not _play(state, _half_right, checks=bad)
        assert judging.is_asked_again(state)
    (alarm,) = _play(state, _half_right, checks=bad)
    assert (alarm.kind, alarm.subject, alarm.name) == (CHECK, "chat", "check chat")
    assert not judging.is_asked_again(state)
    assert not _play(state, _half_right, checks=bad)
    assert not _play(state, _half_right, checks={"chat": "PASS"})
    assert not state.standing
    assert len(_play(state, _half_right, FAILING, checks=bad)) == 1


@pytest.mark.parametrize(("passed", "alarms"), [(LEARNT, 1), (LEARNT - 1, 0)])
def test_a_check_is_watched_that_passed_as_often_as_it_takes(passed, alarms):
    state = _state()
    _play(state, _half_right, passed, checks={"chat": "PASS"})
    assert len(_play(state, _half_right, FAILING + 2, checks={"chat": "FAIL"})) == alarms


def test_a_smoke_test_that_had_to_stop_says_nothing_of_checks():
    state = _state()
    for checks, stopped in [({"chat": "PASS"}, "")] * LEARNT + [({"chat": "FAIL"}, "gone")] * 5:
        seen = Seen(
            round=state.rounds + 1,
            started_at="",
            seconds=0.0,
            asked=[],
            values=[],
            usable="",
            prompt_tokens=[],
            failures={},
            checks=checks,
            stopped=stopped,
        )
        assert not judging.judge(state, seen, RULES)
    assert not state.rows["chat"].failing


def test_what_is_asked_follows_from_seed_and_round_alone():
    asked = []
    for value in (_half_right, lambda i: 0.0):
        state = _learnt(_half_right)
        _play(state, value, 3)
        asked.append(judging.questions_of(state, RULES, MOST))
    assert asked[0] == asked[1]


def test_answers_that_the_scorer_cannot_judge_are_no_failed_requests_and_no_wrong_answers():
    state = _learnt(_half_right)
    for _ in range(60):
        asked = judging.questions_of(state, RULES, MOST)
        seen = Seen(
            round=state.rounds + 1,
            started_at="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            asked=asked,
            values=[None] * len(asked),
            usable="0" * len(asked),
            prompt_tokens=[20] * len(asked),
            failures={},
            unscored=len(asked),
        )
        assert judging.judge(state, seen, RULES) == []


def test_a_scorer_that_raises_is_noted_of_a_round():
    def score(sample, response):
        raise KeyError(response.text)

    asked = job.generate_pool(20, chat=False)
    asked = replace(asked, task=replace(asked.task, score=score))
    seen = Seen(
        round=1,
        started_at="",
        seconds=1.0,
        asked=[0],
        values=[],
        usable="",
        prompt_tokens=[],
        failures={},
    )
    response = Response(
        text="7", finish_reason="stop", usage=Usage(prompt_tokens=9, completion_tokens=2)
    )
    asyncio.run(asking.note(seen, _state(), asked, 0, response, None))
    assert (seen.values, seen.usable, seen.unscored, seen.came, seen.tokens) == (
        [None],
        "0",
        1,
        1,
        11,
    )
    assert seen.first_unscored.startswith(f"{asked.samples[0].id}: KeyError: '7' (")


ALARM = {"kind": "accuracy", "round": 3}


def _deliver(to, environ=None):
    told = []
    headers = {"X-Team": "${TEAM_TOKEN}"}
    connection = Connection(
        api_key_env="MY_KEY", headers=headers, proxy="http://${USER_OF}:x@proxy:1"
    )
    return asyncio.run(deliver(to, ALARM, connection, environ or {}, told.append)), told


def test_a_command_hears_no_secret_of_the_endpoint_and_no_shell_reads_it():
    secret = {"MY_KEY": "a", "OPENAI_API_KEY": "b", "TEAM_TOKEN": "c", "USER_OF": "d"}
    script = (
        "import os, sys; sys.exit(set(os.environ) - {'LC_CTYPE'} != {'PATH', 'PAGER'} or"
        " sys.argv[1] != '$PAGER;')"
    )
    around = {**secret, "PAGER": "1", "SECRET_XYZ": "e", "PATH": os.environ["PATH"]}
    to = delivery(f'{sys.executable} -c "{script}" $PAGER;', None, around, ["PAGER"])
    assert _deliver(to, around) == ({"command": True}, [])


def test_a_variable_for_the_command_has_to_be_there():
    with pytest.raises(PlanError, match=r"watch\.alarm_env: not set in the environment: PAGER_KEY"):
        delivery("mail me", None, {}, ["PAGER_KEY"])
    with pytest.raises(PlanError, match=r"watch\.alarm_env needs --on-alarm-command"):
        delivery(None, None, {"PAGER_KEY": "k"}, ["PAGER_KEY"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/no/such/pager",), "/no/such/pager: No such file or directory"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "exited with 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not finish within 0.5 s"),
    ],
)
def test_a_command_that_fails_is_told(command, said, monkeypatch):
    monkeypatch.setattr(alarming, "COMMAND_S", 0.5 if "60" in command[-1] else 60.0)
    took, told = _deliver(Delivery(command=command))
    assert took == {"command": False}
    assert said in told[0]


def test_a_webhook_is_tried_again_where_that_may_help_and_its_address_is_not_told(
    monkeypatch,
):
    monkeypatch.setattr(alarming, "PAUSE_S", 0.0)
    endpoint = Endpoint(refusals=[503, 429, 503, 404, 500])
    told = []

    async def main():
        async with endpoint.server.serve() as url:
            to = Delivery(webhook=url.removesuffix("/v1") + "/${PLACE}")
            return [
                await deliver(to, ALARM, Connection(), {"PLACE": "hook"}, told.append)
                for _ in range(3)
            ]

    assert asyncio.run(main()) == [{"webhook": False}, {"webhook": False}, {"webhook": True}]
    assert endpoint.alarms == [ALARM]
    assert told == [
        "warning: the alarm's webhook failed: HTTP 503",
        "warning: the alarm's webhook failed: HTTP 404",
    ]
    took, said = _deliver(Delivery(webhook="http://127.0.0.1:9/secret"))
    assert took == {"webhook": False}
    assert "secret" not in said[0]


@pytest.mark.parametrize(
    "url", ["https://", "http://[::1", "http://host:99999/", "http://host:port/", "host/hook"]
)
def test_a_webhook_that_is_no_address_is_refused_beforehand(url):
    with pytest.raises(PlanError, match="--webhook: expected"):
        delivery(None, url, {})


def test_a_webhook_that_no_resolver_takes_does_not_end_the_watch(
    monkeypatch,
):
    monkeypatch.setattr(alarming, "PAUSE_S", 0.0)
    told = []
    to = delivery(None, "http://xn--/hook", {})
    assert asyncio.run(deliver(to, {}, Connection(), {}, told.append)) == {"webhook": False}
    assert told == ["warning: the alarm's webhook failed: IDNAError"]
