"""Test tasks that end early.

The verdict is the one that the whole task would have given.
"""

import asyncio
import math
import random
from array import array
from dataclasses import replace

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.early_stop import EarlyStopping, looks_at_pairs, watch
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import (
    AccuracySpec,
    Dataset,
    Failure,
    FailureKind,
    Hypothesis,
    Limits,
    Metric,
    Outcome,
    Plan,
    Reference,
    ReferenceRuns,
    Response,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
    VerdictOutcome,
)
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.sessions import read_sessions
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import SampleScores
from serve_eval.workflows.references import register
from tests.made_results import make_prepared

ACCURACY = Metric()
LOST = Failure(kind=FailureKind.TIMEOUT, message="late")

pytestmark = pytest.mark.usefixtures("simulated_here")


def _task(metric):
    def score(sample, response):
        return Score(value=float(response.text), outcome=Outcome.PARTIAL)

    return Task(
        name="numbers",
        version=1,
        reference_file="numbers",
        metric=metric,
        hypothesis=Hypothesis(),
        sampling=SamplingParams(max_tokens=2),
        protocol={},
        load=lambda roots, n: Dataset(samples=[], files=(), total=0),
        score=score,
        answers=lambda sample: ("1", "0"),
    )


def _prefix(n, test, *, metric=ACCURACY, **more):
    samples = [Sample(id=str(i), prompt=f"p{i}", target="") for i in range(n)]
    accumulator = ScoreAccumulator(_task(metric), samples)
    order = list(range(n))
    random.Random(0).shuffle(order)
    options = {"seed": 0, "higher_is_better": True, "before": None, **more}
    return EarlyStopping(accumulator, lambda: test, order, **options), accumulator


def _answer(value):
    return Response(text=str(value), finish_reason="stop")


def test_only_the_contiguous_prefix_is_looked_at():
    prefix, accumulator = _prefix(100, EarlyClassic.mean_only(100, 0.5))
    for i in prefix.order[1:]:
        accumulator.add(i, _answer(1.0))
        assert not prefix.look()
    assert prefix.looked_at == 0
    accumulator.add(prefix.order[0], _answer(1.0))
    assert prefix.look()
    assert prefix.decision is Decision.PASS
    assert prefix.looked_at < 100


def test_answers_that_are_quick_and_right_do_not_hide_those_that_are_slow_and_wrong():
    """In the order of completion the same values would give a PASS that the whole run denies."""
    rng = random.Random(3)
    slow = {i for i in range(2000) if rng.random() < 0.3}
    naive = EarlyClassic.mean_only(2000, 0.9)
    prefix, accumulator = _prefix(2000, EarlyClassic.mean_only(2000, 0.9))
    for i in (i for i in range(2000) if i not in slow):
        accumulator.add(i, _answer(1.0))
        naive.update((1.0,))
        assert not prefix.look()
    assert naive.decision is Decision.PASS
    assert prefix.looked_at < 20
    for i in sorted(slow):
        accumulator.add(i, _answer(0.0))
        prefix.look()
    assert prefix.decision is Decision.FAIL


@pytest.mark.parametrize(("value", "decision"), [(1.0, Decision.FAIL), (0.0, Decision.PASS)])
def test_lower_may_be_better(value, decision):
    test = EarlyClassic.mean_only(500, -0.5, lo=-1.0, hi=0.0)
    prefix, accumulator = _prefix(
        500, test, metric=Metric(higher_is_better=False), higher_is_better=False
    )
    for i in prefix.order:
        accumulator.add(i, _answer(value))
        prefix.look()
    assert prefix.decision is decision


def test_a_missing_answer_counts_against_the_bet_and_too_many_decide_nothing():
    before = array("d", [1.0] * 1000)
    prefix, accumulator = _prefix(1000, EarlyClassic.for_pairs(1000, 0.05), before=before)
    sound, _ = _prefix(1000, EarlyClassic.for_pairs(1000, 0.05), before=before)
    for number, i in enumerate(prefix.order):
        accumulator.add(i, LOST if number == 20 else _answer(1.0))
        if prefix.look():
            break
    assert prefix.decision is Decision.PASS
    told = prefix.result()
    assert (told.missing, told.estimate, told.stopped) == (1, 100.0, True)
    assert told.saved == 1000 - told.looked_at
    sound_tally = sound._accumulator
    while not sound.look():
        sound_tally.add(sound.order[sound.looked_at], _answer(1.0))
    assert sound.looked_at < told.looked_at
    often, accumulator = _prefix(1000, EarlyClassic.for_pairs(1000, 0.05), before=before)
    for number, i in enumerate(often.order):
        accumulator.add(i, LOST if number % 10 == 5 else _answer(1.0))
        often.look()
    assert (often.decision, often.looked_at) == (None, 1000)
    assert not often.result().stopped


@pytest.mark.parametrize(("n", "lost", "asked"), [(100, 3, 300), (198, 4, 200)])
def test_a_run_that_is_undecided_for_what_is_missing_is_decided_early_with_probability_eps_at_most(
    n, lost, asked
):
    """One more answer is missing than allowed.

    Without a bet on it from the first sample on, many runs are decided.
    """
    rng, decided = random.Random(7), 0
    before = array("d", (float(rng.random() < 0.8) for _ in range(n)))
    for _ in range(asked):
        missing = set(rng.sample(range(n), lost))
        prefix, accumulator = _prefix(n, EarlyClassic.for_pairs(n, 0.1), before=before)
        prefix.order[:] = rng.sample(range(n), n)
        for i in prefix.order:
            accumulator.add(i, LOST if i in missing else _answer(before[i]))
        decided += prefix.look()
    assert decided <= acceptance_region(asked, 0.01)[1]


def test_missing_answers_are_worst_for_passing_and_best_for_failing():
    """The answers leave the whole run undecided at 46 to 54 points.

    Either bound alone would decide it.
    """
    rng, runs, decided = random.Random(5), 60, 0
    for _ in range(runs):
        prefix, accumulator = _prefix(
            1000, EarlyClassic.mean_only(1000, 0.5, eps=0.05, max_missing=0.1)
        )
        prefix.order[:] = rng.sample(range(1000), 1000)
        for i in range(1000):
            accumulator.add(i, LOST if i < 80 else _answer(float(i < 540)))
        decided += prefix.look()
    assert decided <= acceptance_region(runs, 0.05)[1]


@pytest.mark.parametrize(
    ("test", "before"),
    [
        (EarlyClassic.mean_only(100, 0.5), None),
        (EarlyClassic.for_pairs(100, 0.1), array("d", [0.5] * 100)),
    ],
)
def test_each_missing_answer_makes_both_bets_of_a_run_poorer(test, before):
    prefix, accumulator = _prefix(100, test, before=before)
    for number, i in enumerate(prefix.order[:8]):
        had = test.log_wealth_pass, test.log_wealth_fail
        accumulator.add(i, _answer(0.5) if number < 4 else LOST)
        prefix.look()
        if number >= 4:
            assert test.log_wealth_pass < had[0]
            assert test.log_wealth_fail < had[1]
    assert (test.looked_at, test.missing) == (8, 4)


def _prepared(reference, n=2000):
    task = _task(ACCURACY)
    samples = [Sample(id=str(i), prompt=f"p{i}", target="") for i in range(n)]
    return make_prepared(
        task,
        Dataset(samples=samples, files=(), total=n),
        hypothesis=Hypothesis(num_samples=n),
        reference=reference,
    )


def _with_runs(reference, folder, runs):
    """Return a reference with the scores of these runs."""
    n = len(runs[0])
    keys = b"".join(map(sample_key, _prepared(reference, n).dataset.samples))
    scores = tuple(array("d", run) for run in runs)
    stored = SampleScores(task="numbers", lo=0.0, hi=1.0, keys=keys, runs=scores)
    digest = reference_samples.write(folder / "scores", stored)
    values = tuple(100.0 * sum(run) / n for run in runs)
    kept = ReferenceRuns(values=values, n=n, sigma=0.0, samples="scores", sha256=digest)
    return replace(reference, runs=kept, file=str(folder / "numbers.yaml"))


def _look_at_repeats(folder, runs, repeats, answer):
    """Return the early stop against these runs when it decides; `answer` scores a sample."""
    reference = Reference(task="numbers", model="m", spec=AccuracySpec(), value=50.0)
    prepared = _prepared(_with_runs(reference, folder, runs), len(runs[0]))
    prepared = replace(prepared, rule=Spec(name="noninferiority", options={"margin": 15.0}))
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples, repeats=repeats)
    prefix, note = watch(prepared, accumulator, eps=0.01, seed=0)
    assert note is None
    for i in prefix.order:
        accumulator.add(i, _answer(answer(i)))
        if prefix.look():
            break
    return prefix


def test_repeats_are_asked_in_rounds_of_one_order(tmp_path):
    n, runs = 40, [[0.0, 1.0] * 20] * 2
    order = _look_at_repeats(tmp_path, runs, 4, lambda i: float(i % 2)).order
    assert sorted(order[:n]) == list(range(n)) != list(order[:n])
    assert [list(order[r * n : (r + 1) * n]) for r in range(1, 4)] == [
        [i + r * n for i in order[:n]] for r in range(1, 4)
    ]


def test_repeats_against_runs_that_differ_are_decided_at_the_end_of_a_round(tmp_path):
    """Each block of rounds is compared with answers of its own: within it nothing is certain."""
    rng, n = random.Random(1), 80
    chances = [rng.random() for _ in range(n)]
    runs = [[float(rng.random() < chance) for chance in chances] for _ in range(2)]
    found = _look_at_repeats(tmp_path, runs, 8, lambda i: float(rng.random() < chances[i % n]))
    assert found.decision is Decision.PASS
    assert found.looked_at % n == 0


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    ("options", "decision"), [({}, None), ({"max_missing": 0.5}, Decision.PASS)]
)
def test_the_share_of_answers_that_may_be_missing_is_that_of_the_rule(
    tmp_path, paired, options, decision
):
    """A fifth is missing; the others are as good as the reference, far above the threshold."""
    reference = Reference(
        task="numbers", model="m", spec=AccuracySpec(), value=50.0, threshold=30.0
    )
    if paired:
        reference = _with_runs(reference, tmp_path, [[0.5] * 2000])
    rule = Spec(name="classic", options=options)
    prepared = replace(_prepared(reference), rule=rule)
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples)
    prefix, _ = watch(prepared, accumulator, eps=0.01, seed=0)
    for number, i in enumerate(prefix.order):
        accumulator.add(i, LOST if number % 5 == 4 else _answer(0.5))
        if prefix.look():
            break
    assert (prefix.decision, prefix.result().paired) == (decision, paired)


@pytest.mark.parametrize(
    ("higher", "value", "decision"),
    [
        (True, 0.5, Decision.PASS),
        (True, 0.2, Decision.FAIL),
        (False, 0.5, Decision.PASS),
        (False, 0.8, Decision.FAIL),
    ],
)
def test_the_value_of_a_reference_is_the_threshold_of_its_own_direction(higher, value, decision):
    prepared = _prepared(
        Reference(
            task="numbers", model="m", spec=AccuracySpec(), value=50.0, higher_is_better=higher
        )
    )
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples)
    prefix, note = watch(prepared, accumulator, eps=0.01, seed=3)
    assert note is None
    for i in prefix.order:
        accumulator.add(i, _answer(value))
        if prefix.look():
            break
    told = prefix.result()
    assert (prefix.decision, told.stopped, told.paired) == (decision, True, False)
    assert (told.eps, told.order_seed, told.rule) == (0.01, 3, "classic")
    assert told.log_wealth_answered >= math.log(100)
    won, lost = told.log_wealth_pass, told.log_wealth_fail
    assert (won or 0.0) != (lost or 0.0)


def test_an_endpoint_that_turns_worse_is_not_passed_on_what_came_before():
    """From sample 120 of 198 on the endpoint loses three answers of ten.

    The whole run fails. Without the chart half of these runs pass.
    """
    rng, n, runs, passed = random.Random(3), 198, 200, 0
    before = array("d", (float(rng.random() < 0.9) for _ in range(n)))
    for _ in range(runs):
        prefix, accumulator = _prefix(n, EarlyClassic.for_pairs(n, 0.0827), before=before)
        prefix.order[:] = rng.sample(range(n), n)
        for place, i in enumerate(prefix.order):
            accumulator.add(i, _answer(0.0 if place >= 120 and rng.random() < 0.3 else before[i]))
        prefix.look()
        value = sum(score for i in range(n) if (score := accumulator.score(i)) is not None)
        passed += prefix.decision is Decision.PASS and value < sum(before) - 0.0827 * n
    assert passed <= acceptance_region(runs, 0.01)[1]
    assert prefix.result().held > 0


def test_answers_that_stop_coming_hold_a_decision_up():
    prefix, accumulator = _prefix(1000, EarlyClassic.mean_only(1000, 0.5, eps=1e-12))
    for place, i in enumerate(prefix.order[:128]):
        accumulator.add(i, LOST if place >= 120 else _answer(1.0))
    prefix.look()
    assert prefix.looked_at == 128
    assert prefix._hold.holds()


# --------------------------------------------------------------------------------------------- runs
# over HTTP


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.8, "flip_rate": 0.034, "seed": 3}),
        tasks=(Spec(name="gsm8k"),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )


@pytest.fixture(scope="module")
def judged(plan, tmp_path_factory, simulated_here):
    """Return the plan with a reference that was registered from a run of it."""
    folder = tmp_path_factory.mktemp("judged")
    _run(plan, folder / "reference")
    register([folder / "reference"], folder / "refs")
    return replace(plan, no_reference=False, references_dir=str(folder / "refs"))


def _run(plan, folder, **more):
    options = {**plan.launcher.options, **more}
    return asyncio.run(
        evaluate(replace(plan, launcher=Spec(name="simulated", options=options)), folder)
    )


def _early(report):
    told = report.tasks[0].verdict.early
    assert told is not None
    return told


@pytest.mark.parametrize(
    ("damage", "outcome"), [(0.0, VerdictOutcome.PASS), (0.2, VerdictOutcome.FAIL)]
)
def test_a_clear_case_stops_with_the_verdict_of_the_whole_run(judged, tmp_path, damage, outcome):
    early = replace(judged, early_stop=0.01)
    report = _run(early, tmp_path / "out", run=1, damage=damage)
    (task,) = report.tasks
    told = _early(report)
    assert task.verdict.outcome is outcome
    assert (told.stopped, told.paired, told.decision) == (True, True, outcome.value)
    assert 0 < told.looked_at < 1319
    assert told.saved == task.result.spared > 0
    assert task.result.planned == task.result.scored + task.result.failed + task.result.spared
    assert (task.verdict.evaluated, task.verdict.bounds, task.verdict.paired) == (None, None, None)
    assert report.exit_code == (0 if outcome is VerdictOutcome.PASS else 1)
    assert (
        told.order_seed
        == order_seed.read_seeds(tmp_path / "out", early).samples
        == report.loads[-1].order_seed
    )
    by_pairs = replace(
        run_folder.read_plan(tmp_path / "out"), early_stop=None, verdict=Spec(name="paired")
    )
    assert judge_again(by_pairs, tmp_path / "out").tasks[0].verdict.outcome in (
        VerdictOutcome.INCONCLUSIVE,
        outcome,
    )

    # The same command asks nothing more, and a second judgement finds the same.
    again = _run(early, tmp_path / "out", run=1, damage=damage)
    assert len(read_sessions(tmp_path / "out")) == 1
    assert again.tasks[0].verdict == task.verdict
    assert (
        judge_again(run_folder.read_plan(tmp_path / "out"), tmp_path / "out").tasks[0].verdict
        == task.verdict
    )

    with pytest.raises(RunFolderError, match="have no answer"):
        register([tmp_path / "out"], tmp_path / "other", reason="try")

    # Without the early stop the run continues to its end.
    whole = _run(judged, tmp_path / "out", run=1, damage=damage)
    assert whole.tasks[0].verdict.outcome is outcome
    assert (whole.tasks[0].result.scored, whole.tasks[0].verdict.early) == (1319, None)
    assert run_folder.read_plan(tmp_path / "out").early_stop is None
    kept = judge_again(run_folder.read_plan(tmp_path / "out"), tmp_path / "out")
    assert kept.tasks[0].verdict == whole.tasks[0].verdict


def test_two_runs_look_in_different_orders(judged, tmp_path):
    early = replace(judged, early_stop=0.01)
    seeds = {_early(_run(early, tmp_path / str(i), run=1)).order_seed for i in range(2)}
    assert len(seeds) == 2


def test_the_reference_mean_alone_is_enough(judged, tmp_path):
    (tmp_path / "mean").mkdir()
    (tmp_path / "mean/gsm8k.yaml").write_text("my-org/my-model: [{accuracy: 80}]\n")
    by_mean = replace(judged, references_dir=str(tmp_path / "mean"), early_stop=0.01)
    told = _early(_run(by_mean, tmp_path / "out", run=1))
    assert (told.paired, told.decision, told.stopped) == (False, "PASS", True)


def test_with_too_many_answers_missing_the_run_goes_to_its_end_and_is_not_decided(judged, tmp_path):
    early = replace(judged, early_stop=0.01, limits=Limits(max_error_rate=1.0))
    report = _run(early, tmp_path / "out", run=1, failure_rate=0.06, failure_kind="wrapped_400")
    (task,) = report.tasks
    told = _early(report)
    assert (told.stopped, told.saved, told.looked_at) == (False, 0, 1319)
    assert told.missing == task.result.failed > 26
    assert (task.verdict.outcome, task.result.spared) == (VerdictOutcome.INCONCLUSIVE, 0)
    assert task.verdict.bounds is not None


def test_a_task_without_a_reference_is_asked_to_its_end_and_says_why(plan, tmp_path):
    tasks = (Spec(name="gsm8k", options={"num_samples": 50}),)
    report = _run(replace(plan, tasks=tasks, early_stop=0.01), tmp_path / "out")
    assert report.tasks[0].result.scored == 50
    assert "no early stop: there is no reference" in report.tasks[0].verdict.warnings


@pytest.mark.parametrize(
    ("rule", "pairs"),
    [("classic", False), ("paired", True), ("noninferiority", True), ("anchors", False)],
)
def test_the_rules_that_stop_by_pairs_are_known(rule, pairs):
    assert looks_at_pairs(Spec(name=rule)) is pairs
