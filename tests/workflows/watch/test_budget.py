"""Test which plans can be watched, by what budget, and over which hours."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_eval.checks.run import choose_checks
from serve_eval.errors import PlanError
from serve_eval.plan import resolve
from serve_eval.schema import Plan
from serve_eval.stats.betting import floor
from serve_eval.workflows.watch import bets
from serve_eval.workflows.watch import bets as day
from serve_eval.workflows.watch.asking import (
    Budget,
    budget,
    checks_of,
    describe_budget,
    least_fall,
    smoke_tokens,
)
from serve_eval.workflows.watch.bets import ACCURACY, FLOOR_ALPHA
from serve_eval.workflows.watch.document import describe_unjudged, say_gap
from serve_eval.workflows.watch.job import PROMPTS, of_plan
from tests.workflows.watch.changing_endpoint import DAY, NIGHT, START, Watch, by_day

JUDGED = {
    "judge": {
        "judges": [{"name": "j", "base_url": "http://127.0.0.1:9/v1", "model": "j"}],
        "metrics": ["correctness"],
    }
}


def _plan(**settings: Any) -> Plan:
    return resolve.resolve({}, {"model": "m", **settings}, {}).plan


def _cases(folder: Path, scorer: Any) -> str:
    cases = [{"case": "a", "input": {"prompt": "Hello?"}, "expected": "Hi"}]
    (folder / "cases.yaml").write_text(yaml.safe_dump({"c": {"scorer": scorer, "cases": cases}}))
    return str(folder / "cases.yaml")


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        (["word_problems", "passkey_short"], "a watch takes one task, not 2"),
        (["word_problems_perplexity"], r"scores .* have no lower or no upper limit"),
    ],
)
def test_what_cannot_be_watched_says_why(tasks: list[str], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        of_plan(_plan(tasks=tasks))


def test_answers_that_need_a_judge_cannot_be_watched_and_others_can(tmp_path: Path) -> None:
    assert len(of_plan(_plan(cases=[_cases(tmp_path, "exact")])).samples) == 1
    with pytest.raises(PlanError, match="its answers are executed or need a judge"):
        of_plan(_plan(cases=[_cases(tmp_path, JUDGED)]))


@pytest.mark.parametrize(("limit", "count"), [(None, PROMPTS), (7, 7)])
def test_a_pool_has_the_limit_of_its_plan(limit: int | None, count: int) -> None:
    more = {} if limit is None else {"limit": limit}
    pool = of_plan(_plan(tasks=["word_problems"], **more))
    assert len(pool.samples) == len(pool.prompt_tokens()) == count


def _budget(tokens: int, smoke: int = 4000) -> Budget:
    return budget(tokens, smoke=smoke, prompt_tokens=[30, 72], answer_tokens=128)


@pytest.mark.parametrize(
    ("tokens", "every", "with_smoke", "without"),
    [(16_000, 1, 60, 80), (8000, 1, 20, 40), (6000, 2, 10, 30), (3000, 0, 15, 15)],
)
def test_questions_get_what_the_smoke_test_leaves(
    tokens: int, every: int, with_smoke: int, without: int
) -> None:
    one = _budget(tokens)
    assert (one.smoke_every, one.questions(smoke=True), one.questions(smoke=False)) == (
        every,
        with_smoke,
        without,
    )


def test_too_few_tokens_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(PlanError) as caught:
        _budget(1999)
    assert "Give at least 2000" in caught.value.hint


def _describe(tokens: int, **more: Any) -> list[str]:
    usual = {"every_s": 600.0, "prompts": 200, "passes": 8, "tolerance": 0.01}
    return list(describe_budget(_budget(tokens), **{**usual, **more}))


def test_what_it_costs_is_told() -> None:
    assert _describe(6000) == [
        (
            "each round asks 10 or 30 questions (at most 200 tokens each), with a smoke"
            " test every 2 rounds, and takes at most 6000 tokens"
        ),
        "per day: 144 rounds, at most 864,000 tokens",
        (
            "the baseline asks 200 prompts 8 times: about 81 rounds, 13.5 hours, at most"
            " 484,000 tokens. Until it is complete, no alarm about accuracy or usable"
            " answers is possible"
        ),
        (
            "--set watch.passes=4 gives a shorter baseline with the same error rate: about 41"
            " rounds, 6.8 hours, at most 244,000 tokens. At best, it notices falls of more "
            "than 2.4% of the answers; the longer one notices falls of more than 1.6%"
        ),
    ]
    assert "about 81 rounds, 13.5 minutes, " in _describe(6000, every_s=10.0)[2]
    assert "about 81 rounds, 49 seconds, " in _describe(6000, every_s=0.6)[2]


@pytest.mark.parametrize("more", [{"passes": 4}, {"passes": 8, "learnt": False}])
def test_a_baseline_that_is_short_or_not_learnt_names_no_shorter_one(more: dict[str, Any]) -> None:
    assert _describe(6000, **more)[-1].startswith("the baseline asks ")


def test_no_round_asks_a_prompt_twice() -> None:
    first, _, last, _ = _describe(16_000, prompts=20)
    assert first.startswith("each round asks 20 questions")
    assert "about 9 rounds" in last


@pytest.mark.parametrize(("prompts", "passes"), [(200, 8), (200, 4), (100, 4)])
def test_the_least_fall_is_that_of_prompts_that_answer_as_before(prompts: int, passes: int) -> None:
    """Nine of ten are always right, so that the distance of the floor is the least possible."""
    scores = [[1.0] * (prompts * 9 // 10) + [0.0] * (prompts // 10)] * passes
    gap = 0.9 - floor(scores, FLOOR_ALPHA[ACCURACY])
    told = least_fall(prompts, passes, 0.01)
    assert told == pytest.approx(0.01 + gap, abs=0.002)


def test_a_watch_sends_no_bursts() -> None:
    names = {check.name for check in checks_of(choose_checks("quick"))}
    assert {"chat", "stream_chat", "openai_chat"} <= names
    assert not names & {"concurrency", "questions", "cancel"}
    assert smoke_tokens(checks_of(choose_checks("quick"))) < 8000


def test_a_baseline_of_one_night_accuses_the_day_and_says_that_it_may_not() -> None:
    watch = Watch(NIGHT, 1)
    assert watch.learn(by_day(0.1)) == 24  # four hours
    said = say_gap(watch.state, watch.rules)
    assert said == (
        "the baseline has no answer from 06:00 to 24:00 UTC: a fall at these hours may be the usual"
        " course of a day, and is no proof of a fault (--set watch.baseline_hours=24 covers a day)"
    )
    (alarm,) = watch.play(by_day(0.5), 144)
    assert alarm.kind == ACCURACY
    assert "; the baseline has no answer from 09:00 to 12:00 UTC, so this may be" in alarm.told


def test_a_fault_at_an_hour_that_the_baseline_knows_is_an_alarm_without_doubt() -> None:
    watch = Watch(NIGHT, 2, START + timedelta(hours=20))
    watch.learn(by_day(0.0))
    watch.at = START + timedelta(days=1, hours=21)
    (alarm,) = watch.play(lambda at: 0.33, 12)
    assert alarm.kind == ACCURACY
    assert "usual course" not in alarm.told


def test_a_baseline_goes_on_until_it_covers_the_hours_in_whole_passes() -> None:
    watch = Watch(DAY, 3)
    watch.play(by_day(0.1), 100)
    assert watch.state.accuracy is None
    assert describe_unjudged(watch.state, watch.rules) == (
        "Accuracy was not judged: the baseline does not cover 24 hours yet. Resume with the same"
        " command."
    )
    assert watch.learn(by_day(0.1)) >= 145
    assert len({len(scores) for scores in watch.state.answers}) == 1
    assert say_gap(watch.state, watch.rules) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_daily_loss_that_the_baseline_covers_is_no_alarm(seed: int) -> None:
    watch = Watch(DAY, seed)
    watch.learn(by_day(0.1))
    assert not watch.play(by_day(0.1), 7 * 144)


def test_and_a_loss_beyond_it_is_one() -> None:
    watch = Watch(DAY, 1)
    watch.learn(by_day(0.1))
    found = watch.play(lambda at: 0.55, 2 * 144)
    assert [alarm.kind for alarm in found] == [ACCURACY]


def test_the_floor_is_that_of_the_worst_block() -> None:
    # 800 answers in the worst block, all of them wrong in one answer of ten.
    answers = [[1.0] * 10 for _ in range(400)]
    blocks = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 3] for _ in range(400)]
    for i in range(0, 400, 10):
        answers[i][3] = answers[i][9] = 0.0
    floor = day.find_worst_floor(answers, blocks, bets.FLOOR_ALPHA[ACCURACY])
    assert 0.80 < floor < 0.90
    alike = [[1.0] * 10 for _ in range(400)]
    assert day.find_worst_floor(alike, blocks, bets.FLOOR_ALPHA[ACCURACY]) > 0.97


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([0, 1, 7], "00:00 to 06:00 and 21:00 to 24:00 UTC"),
        ([3], "09:00 to 12:00 UTC"),
        (list(range(8)), "00:00 to 24:00 UTC"),
        ([0, 2, 4], "00:00 to 03:00, 06:00 to 09:00 and 12:00 to 15:00 UTC"),
    ],
)
def test_blocks_are_named_by_their_hours(blocks: list[int], words: str) -> None:
    assert day.describe_blocks(blocks) == words


def test_times_of_other_zones_are_in_utc() -> None:
    assert day.find_block("2026-01-01T01:00:00+02:00") == 7
