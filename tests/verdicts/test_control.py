"""Test the verdict of a control, by its limits and in runs."""

import asyncio
import json
import math
import random

import pytest

from serve_eval.client.request import put_media
from serve_eval.client.wire_format import wire
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    DataRoots,
    Outcome,
    Plan,
    Spec,
    VerdictOutcome,
)
from serve_eval.stats.pairs import pair
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.verdicts.references import find_shipped_dir, load
from serve_eval.verdicts.rules import classic
from serve_eval.verdicts.rules._control import judge
from tests.made_results import make_result
from tests.scripted_server import ScriptedServer, answer, fail, models

Z_OF_ALPHA = 1.6448536269514722
SIGMA = 50.0


def _result(right, n, task="alone"):
    value = 100.0 * right / n
    return make_result(
        n, value, task=task, outcomes={Outcome.CORRECT: right, Outcome.WRONG: n - right}
    )


def _judge(alone, mixed, media=None):
    pairs = pair([alone], [mixed], lo=0.0, hi=1.0, higher_is_better=True)
    right = sum(score == 1.0 for score in alone)
    return judge(
        _result(right, len(alone)),
        "mixed",
        pairs,
        media or ["image"] * len(alone),
        alpha=0.05,
        max_missing=0.02,
    )


def _scores(right, n):
    return [1.0] * right + [0.0] * (n - right)


@pytest.mark.parametrize(
    ("n", "alone", "mixed", "outcome"),
    [
        (50, 36, 34, "PASS"),  # 4 points
        (50, 36, 33, "FAIL"),  # 6 points
        (20, 13, 12, "PASS"),  # 5 points are not more than 5
        (100, 60, 55, "PASS"),
        (100, 60, 54, "FAIL"),
        (50, 30, 36, "PASS"),
    ],
)
def test_more_than_five_points_may_not_be_lost(n, alone, mixed, outcome):
    verdict = _judge(_scores(alone, n), _scores(mixed, n))
    assert (verdict.outcome, verdict.rule) == (outcome, "control")
    assert verdict.evaluated == 100.0 * alone / n
    down, up = max(0, alone - mixed), max(0, mixed - alone)
    assert (verdict.paired.down, verdict.paired.up) == (down, up)
    assert verdict.paired.p == pytest.approx(mcnemar(down, up).p_mid)
    if outcome == "FAIL":
        [reason] = verdict.reasons
        assert reason.startswith(f"lost_among_others: {100.0 * (alone - mixed) / n:.2f} points")


def test_nor_more_than_ten_of_one_medium():
    media = ["image"] * 20 + ["audio"] * 80
    alone = [1.0] * 100
    two = [0.0] * 2 + [1.0] * 98
    three = [0.0] * 3 + [1.0] * 97
    assert _judge(alone, two, media).outcome is VerdictOutcome.PASS
    verdict = _judge(alone, three, media)
    assert verdict.outcome is VerdictOutcome.FAIL
    assert verdict.reasons == ("lost_among_others: 15.00 points of image, more than 10, of mixed",)


def test_the_limits_are_those_of_the_suite_for_any_scores():
    """The suite subtracts the percentages of right answers, over all and in each medium."""
    rng = random.Random(5)
    outcomes = set()
    for _ in range(40):
        n = rng.choice([9, 20, 30, 50])
        media = [("image", "audio", "video")[i % 3] for i in range(n)]
        alone = [float(rng.random() < 0.8) for _ in media]
        mixed = [float(score and rng.random() < 0.93) for score in alone]
        fails = 100.0 * sum(alone) / n - 100.0 * sum(mixed) / n > 5.0 + 1e-9
        for medium in set(media):
            here = [i for i, m in enumerate(media) if m == medium]
            before, now = (100.0 * sum(s[i] for i in here) / len(here) for s in (alone, mixed))
            fails |= before - now > 10.0 + 1e-9
        outcome = _judge(alone, mixed, media).outcome
        assert outcome is (VerdictOutcome.FAIL if fails else VerdictOutcome.PASS)
        outcomes.add(outcome)
    assert len(outcomes) == 2


def test_a_missing_answer_decides_nothing():
    nan = math.nan
    lost = _judge(_scores(36, 50), [nan, *_scores(33, 49)])
    assert lost.outcome is VerdictOutcome.INCONCLUSIVE  # 2 or 3 lost
    assert lost.reasons == ("missing_results: 1 of 50 pairs lack an answer",)
    surely = _judge(_scores(36, 50), [nan, *_scores(30, 49)])
    assert surely.outcome is VerdictOutcome.FAIL
    many = _judge(_scores(50, 100), [nan] * 3 + _scores(90, 97))
    assert many.outcome is VerdictOutcome.INCONCLUSIVE
    few = _judge(_scores(50, 100), [nan] * 2 + _scores(90, 98))
    assert few.outcome is VerdictOutcome.PASS


def test_chance_and_the_limits_are_told_apart():
    by_chance = _judge(_scores(36, 50), _scores(33, 50))
    [warning] = by_chance.warnings
    assert "the paired test of all questions does not show a drop (p 0.062)" in warning
    assert not _judge(_scores(36, 50), _scores(28, 50)).warnings
    small = _judge(_scores(600, 1000), _scores(560, 1000))
    assert small.outcome is VerdictOutcome.PASS
    assert small.warnings[0].startswith("small_drop: the paired comparison proves a drop (p 0.0000")


FILES = {"videomme": 300, "mixed_modality_omni": 50, "mixed_modality_video_audio_omni": 50}
ROWS = [
    (name, model, place)
    for name in FILES
    for model, entries in load(find_shipped_dir() / f"{name}.yaml").items()
    for place in range(len(entries))
]


def test_every_published_row_is_there():
    assert len(ROWS) == 9
    assert not load(find_shipped_dir() / "mixed_modality_qwen_vl.yaml")


@pytest.mark.parametrize(("name", "model", "place"), ROWS)
def test_every_published_row_judges_as_the_suite_does(name, model, place):
    """The suite's threshold is the reference less z of alpha times sigma times sqrt(2 / n)."""
    entry, task = (
        load(find_shipped_dir() / f"{name}.yaml")[model][place],
        build_task(Spec(name=name)),
    )
    n = FILES[name]
    assert (entry.num_samples, task.hypothesis.num_samples) == (n, n)
    threshold = entry.value - Z_OF_ALPHA * SIGMA * math.sqrt(2.0 / n)
    least = math.ceil(threshold * n / 100.0)
    outcomes = {}
    for right in (least - 1, least):
        verdict = classic.judge(_result(right, n, name), entry, task.hypothesis)
        assert verdict.threshold == pytest.approx(threshold, abs=1e-9)
        outcomes[right] = verdict.outcome
    assert list(outcomes.values()) == [VerdictOutcome.FAIL, VerdictOutcome.PASS]


class Answers:
    """Answers that are right but for those of chosen samples, by what a request shows and asks."""

    def __init__(self, root, wrong):
        self._texts = {}
        for name, is_wrong in wrong.items():
            task = build_task(Spec(name=name))
            assert task.hypothesis.num_samples is not None
            dataset = task.load(DataRoots(roots=(root,)), task.hypothesis.num_samples)
            for place, sample in enumerate(dataset.samples):
                body = json.loads(wire.encode(put_media(request_of(task, sample), "inline"), "m"))
                key = json.dumps(body["messages"])
                self._texts[key] = task.answers(sample)[is_wrong(place)]

    def __call__(self, request):
        key = json.dumps(request.body["messages"])
        return answer(self._texts.get(key, "A"))  # a probe asks something else


def _run(root, out, script, model, *tasks):
    async def main():
        server = ScriptedServer(script, routes={"/v1/models": models(model)})
        async with server.serve() as url:
            plan = Plan(
                model=model,
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=tuple(Spec(name=name) for name in tasks),
                dataset_roots=(str(root),),
            )
            return await evaluate(plan, out, environ={})

    return asyncio.run(main())


OMNI, ALONE = "mixed_modality_omni", "mixed_modality_omni_alone"
MODEL = "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16"


def test_a_run_compares_the_questions_with_and_without_others(data_root, tmp_path):
    """A value of 54 % passes against 70 %, and fails against 60 % without distractors."""
    script = Answers(data_root, {OMNI: lambda i: i % 50 >= 27, ALONE: lambda i: i >= 30})
    report = _run(data_root, tmp_path / "run", script, MODEL, OMNI, ALONE)
    mixed, alone = report.tasks
    assert (mixed.result.value, mixed.verdict.outcome) == (54.0, "PASS")
    assert (alone.result.value, alone.verdict.outcome) == (60.0, "FAIL")
    assert (alone.verdict.rule, report.exit_code) == ("control", 1)
    assert "lost_among_others: 6.00 points" in alone.verdict.reasons[0]
    assert (alone.verdict.paired.down, alone.verdict.paired.up) == (3, 0)
    again = judge_again(report.plan, tmp_path / "run")
    assert [task.verdict for task in again.tasks] == [task.verdict for task in report.tasks]


class Losing(Answers):
    """The same, but the first request of each wrong sample fails, and the next is right."""

    def __init__(self, root, wrong):
        super().__init__(root, wrong)
        self._right = Answers(root, {name: lambda i: False for name in wrong})
        self._seen = set()

    def __call__(self, request):
        key = json.dumps(request.body["messages"])
        same = self._texts.get(key) == self._right._texts.get(key)
        if same or key in self._seen:
            return self._right(request)
        self._seen.add(key)
        return fail(500)


class Cutting(Losing):
    """The same, but each wrong answer is cut at max_tokens."""

    def __call__(self, request):
        key = json.dumps(request.body["messages"])
        cut = self._texts.get(key) != self._right._texts.get(key)
        return answer(self._texts.get(key, "A"), finish="length" if cut else "stop")


def test_a_control_says_that_cut_answers_could_turn_it(data_root, tmp_path):
    """All that was lost among others was cut there."""
    script = Cutting(data_root, {OMNI: lambda i: i % 50 >= 27, ALONE: lambda i: i >= 30})
    report = _run(data_root, tmp_path / "run", script, MODEL, OMNI, ALONE)
    mixed, alone = report.tasks
    assert alone.verdict.outcome == "FAIL"
    effect = alone.verdict.cut
    assert (effect.cut, effect.reference_cut) == (20, mixed.result.cut_answers)
    assert effect.reference_outcome == "PASS"
    assert f"cut_answers: this FAIL could be PASS if the {effect.reference_cut}" in "".join(
        alone.verdict.warnings
    )


def test_answers_that_only_a_retry_gave_leave_a_control_open(data_root, tmp_path, monkeypatch):
    """The mixed questions would lose 46 points; their errors hide it."""
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    script = Losing(data_root, {OMNI: lambda i: i % 50 >= 27, ALONE: lambda i: False})
    report = _run(data_root, tmp_path / "run", script, MODEL, OMNI, ALONE)
    mixed, alone = report.tasks
    assert mixed.result.repaired == 23 * mixed.result.planned // 50
    assert (alone.verdict.rule, alone.verdict.outcome) == ("control", "INCONCLUSIVE")
    assert alone.verdict.reasons[0].startswith("repaired_answers: the first answers to ")


def _run_pair(root, out, *tasks, limit=None):
    """Run tasks against an endpoint that always answers A."""

    async def main():
        server = ScriptedServer([answer("A")], routes={"/v1/models": models("m")})
        async with server.serve() as url:
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=tasks,
                dataset_roots=(str(root),),
                allow_missing_reference=True,
                limit=limit,
            )
            return await evaluate(plan, out, environ={})

    return asyncio.run(main())


SEEN = "mixed_modality_qwen_vl"


def test_a_control_alone_is_not_judged(data_root, tmp_path):
    spec = Spec(name=f"{SEEN}_alone", options={"num_samples": 4})
    [alone] = _run_pair(data_root, tmp_path / "run", spec).tasks
    assert alone.verdict.outcome is VerdictOutcome.NO_REFERENCE
    assert alone.verdict.reasons == (f"a control: it is judged if {SEEN} is in the same run",)


def test_a_subset_has_the_same_questions(data_root, tmp_path):
    specs = (Spec(name=n, options={"num_samples": 12}) for n in (SEEN, f"{SEEN}_alone"))
    [_, alone] = _run_pair(data_root, tmp_path / "run", *specs, limit=8).tasks
    assert alone.verdict.outcome is VerdictOutcome.PASS
    assert alone.verdict.num_samples == 8


def test_other_questions_are_not_compared(data_root, tmp_path):
    options = {"num_samples": 4}
    mixed = Spec(name=SEEN, options={**options, "num_frames": 2})
    control = Spec(name=f"{SEEN}_alone", options={**options, "random_seed": 1})
    [_, alone] = _run_pair(data_root, tmp_path / "run", mixed, control).tasks
    assert alone.verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert alone.verdict.reasons == (
        f"not compared with {SEEN}: it has another num_frames, random_seed",
    )


def test_video_mme_is_judged_at_its_threshold(data_root, tmp_path):
    """54.5 - 6.715 = 47.785 %: 144 of 300 right answers pass, 143 do not."""
    script = Answers(data_root, {"videomme": lambda i: i < 157})
    model = "Qwen/Qwen3-VL-2B-Instruct"
    report = _run(data_root, tmp_path / "run", script, model, "videomme")
    [task] = report.tasks
    assert task.result.value == pytest.approx(143 / 3)
    assert task.verdict.threshold == pytest.approx(54.5 - 6.715087, abs=1e-6)
    assert (task.verdict.outcome, report.exit_code) == (VerdictOutcome.FAIL, 1)
