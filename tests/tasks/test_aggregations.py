"""Test values that are not the mean of scores.

Covers the values and everything that needs a mean.
"""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import NotComparableError, RunFolderError
from serve_eval.evaluation.build_report import check_pairs
from serve_eval.evaluation.early_stop import watch
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.protocol.sampling_fields import fingerprint
from serve_eval.schema import (
    MEAN,
    AccuracySpec,
    Dataset,
    Endpoint,
    Failure,
    FailureKind,
    Hypothesis,
    Metric,
    Outcome,
    Plan,
    Reference,
    ReferenceRuns,
    Report,
    Response,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
    VerdictOutcome,
)
from serve_eval.series.history import _unfit
from serve_eval.tasks._samples import mean_of_means, ratio_of_sums
from serve_eval.verdicts import pairing
from serve_eval.verdicts.rules import classic
from serve_eval.workflows.power.assumed import measure_run
from tests.made_results import make_prepared, make_task_report

BY_SET = mean_of_means("mean of the means per set", lambda sample: sample.metadata["set"])
PERPLEXITY = ratio_of_sums("perplexity", "nll", "tokens", then=math.exp)
LOST = Failure(kind=FailureKind.TIMEOUT, message="late")


def _score(sample, response):
    value, *tokens = map(float, response.text.split())
    parts = {"nll": value, "tokens": tokens[0]} if tokens else {"valid": 1.0}
    return Score(value=value, outcome=Outcome.PARTIAL, parts=parts)


def _load(roots, wanted):
    raise NotImplementedError


def _task(**more):
    fields = {
        "name": "t",
        "version": 1,
        "reference_file": "t",
        "metric": Metric(),
        "hypothesis": Hypothesis(num_samples=4),
        "sampling": SamplingParams(max_tokens=1),
        "protocol": {},
        "load": _load,
        "score": _score,
        "answers": lambda sample: ("1", "0"),
    }
    return Task(**{**fields, **more})


def _samples(*sets):
    return [
        Sample(id=f"s{i}", prompt=f"p{i}", target="", metadata={"set": name})
        for i, name in enumerate(sets)
    ]


def _tally(task, samples, texts, repeats=1):
    tally = ScoreAccumulator(task, samples, repeats=repeats)
    for i, text in enumerate(texts):
        tally.add(i, LOST if text is None else Response(text=text, finish_reason="stop"))
    return tally


def _scored(values):
    samples = _samples(*(name for name, _ in values))
    return [
        (sample, Score(value=value, outcome=Outcome.PARTIAL))
        for sample, (_, value) in zip(samples, values, strict=True)
    ]


def test_every_set_weighs_the_same_at_every_level():
    nested = mean_of_means("nested", lambda s: s.metadata["set"][0], lambda s: s.metadata["set"])
    assert BY_SET.of(_scored([("a", 1.0), ("a", 0.0), ("b", 1.0)])) == 0.75
    # groups: x has the sets x1 (1.0) and x2 (0.0), y has y1 (1.0)
    assert nested.of(_scored([("x1", 1.0), ("x1", 1.0), ("x2", 0.0), ("y1", 1.0)])) == 0.75


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1)), min_size=1),
    st.integers(0),
    st.floats(0, 1),
)
def test_a_mean_of_means_never_falls_when_a_score_rises(values, place, higher):
    place %= len(values)
    name, value = values[place]
    raised = [*values[:place], (name, max(value, higher)), *values[place + 1 :]]
    assert BY_SET.of(_scored(raised)) >= BY_SET.of(_scored(values)) - 1e-12


def test_perplexity_is_the_exponential_of_the_mean_over_tokens_and_not_over_texts():
    task = _task(
        metric=Metric(name="perplexity", higher_is_better=False, hi=None, scale=1.0),
        aggregation=PERPLEXITY,
    )
    result = _tally(task, _samples("a", "a"), ["10 10", "90 30"]).result()
    assert result.value == pytest.approx(math.exp(100 / 40))
    assert (result.aggregation, result.bounds) == ("perplexity", (result.value, result.value))
    without = _tally(task, _samples("a"), ["0 0"]).result()
    assert (without.value, without.bounds, without.scored) == (None, None, 1)
    assert "no tokens" in without.hook_errors[0]


def test_missing_answers_bound_a_mean_of_means_by_the_weight_of_their_set():
    task = _task(aggregation=BY_SET)
    samples = _samples("a", "a", "b", "b")
    result = _tally(task, samples, ["1", "1", "0", None]).result()
    assert (result.value, result.bounds) == (50.0, (50.0, 75.0))
    assert _tally(task, samples, [None] * 4).result().bounds == (0.0, 100.0)
    whole = _tally(task, samples, ["1", "1", "0", "1"]).result()
    assert whole.bounds == (75.0, 75.0) == (whole.value, whole.value)


def test_missing_answers_leave_a_ratio_without_bounds_and_the_verdict_open():
    metric = Metric(name="perplexity", higher_is_better=False, hi=None, scale=1.0)
    task = _task(metric=metric, aggregation=PERPLEXITY)
    result = _tally(task, _samples("a", "a"), ["10 10", None]).result()
    assert result.bounds is None
    verdict = classic.judge(
        result, _reference(9.0), Hypothesis(num_samples=2), None, max_missing=0.9
    )
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert verdict.reasons[0].startswith("missing_results")


@pytest.mark.parametrize(
    ("value", "outcome"), [(2.0, VerdictOutcome.PASS), (3.0, VerdictOutcome.FAIL)]
)
def test_a_value_that_is_better_low_passes_below_its_threshold(value, outcome):
    metric = Metric(name="perplexity", higher_is_better=False, hi=None, scale=1.0)
    result = _tally(
        _task(metric=metric, aggregation=PERPLEXITY), _samples("a"), [f"{math.log(value)} 1"]
    ).result()
    verdict = classic.judge(result, _reference(2.0), Hypothesis(num_samples=86, sigma=1.0), None)
    assert verdict.outcome is outcome


def test_values_beside_the_value_are_in_the_result():
    def secondary(scored):
        return {"best": 100.0 * max(score.value for _, score in scored)}

    result = _tally(_task(secondary=secondary), _samples("a", "a"), ["0.5", "0.25"]).result()
    assert (result.value, result.parts, result.secondary) == (
        37.5,
        {"valid": 100.0},
        {"best": 50.0},
    )


def test_repeats_spread_as_their_own_values_do_and_have_no_vote():
    samples = _samples("a", "a", "b")
    texts = ["1", "0", "1", "1", "1", "0"]  # two rounds: 75 and 50
    result = _tally(_task(aggregation=BY_SET), samples, texts, repeats=2).result()
    assert result.stability.sd == pytest.approx(25 / math.sqrt(2))
    assert result.stability.majority is None
    assert result.value == pytest.approx(100 * (0.75 + 0.5) / 2)


def test_repeats_of_scores_without_a_range_are_neither_right_nor_wrong():
    metric = Metric(name="perplexity", higher_is_better=False, hi=None, scale=1.0)
    task = _task(metric=metric, aggregation=PERPLEXITY)
    stability = _tally(task, _samples("a"), ["1 1", "2 1"], repeats=2).result().stability
    assert not stability.pass_at


def test_the_progress_shows_no_mean_of_what_has_none():
    assert _tally(_task(aggregation=BY_SET), _samples("a"), ["1"]).running_value is None
    assert _tally(_task(), _samples("a"), ["1"]).running_value == 100.0


def test_the_fingerprint_names_it_and_that_of_a_mean_stays_as_it_was():
    dataset = Dataset(samples=_samples("a"), files=(), total=1)
    assert fingerprint(_task(aggregation=BY_SET), dataset)["aggregation"] == BY_SET.name
    assert "aggregation" not in fingerprint(_task(), dataset)


# -------------------------------------------------------------------------------------------------
# what is refused


def _reference(value, runs=None):
    return Reference(
        task="t", model="m", spec=AccuracySpec(), value=value, runs=runs, file="r.yaml", line=3
    )


def _prepared(task):
    runs = ReferenceRuns(values=(50.0,), n=1, sigma=1.0, samples="s", sha256="0")
    return make_prepared(
        task,
        Dataset(samples=_samples("a"), files=(), total=1),
        spec=Spec(name="t"),
        hypothesis=Hypothesis(num_samples=1),
        reference=_reference(50.0, runs),
    )


def test_an_early_stop_is_refused_with_its_reason():
    p = _prepared(_task(aggregation=BY_SET))
    prefix, note = watch(p, ScoreAccumulator(p.task, p.dataset.samples), eps=0.01, seed=0)
    assert prefix is None
    assert (
        note
        == "no early stop: the value is the mean of the means per set, not the mean of the scores"
    )


@pytest.mark.parametrize("rule", ["paired", "noninferiority"])
def test_rules_that_compare_sample_by_sample_are_refused_before_anything_is_sent(rule):
    plan = Plan(
        model="m", launcher=Spec(name="external"), tasks=(Spec(name="t"),), verdict=Spec(name=rule)
    )
    with pytest.raises(NotComparableError, match="mean of the means per set") as refused:
        check_pairs(plan, [_prepared(_task(aggregation=BY_SET))])
    assert "classic" in refused.value.hint


def test_the_classic_verdict_says_why_there_is_no_paired_comparison():
    p = _prepared(_task(aggregation=BY_SET))
    assert p.reference is not None
    tally = _tally(p.task, list(p.dataset.samples), ["1"])
    pairs, note = pairing.with_reference(p.task, p.dataset, p.reference, tally.runs())
    assert (pairs, note) == (
        None,
        "not paired with the reference: the value is the mean of the means per set, not the mean of"
        " the scores",
    )


def _report(result):
    verdict = classic.judge(result, _reference(50.0), Hypothesis(num_samples=2), None)
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="t"),))
    traffic = _tally(_task(), [], []).traffic
    task = make_task_report(result, verdict, spec=Spec(name="t"), traffic=traffic)
    report = Report(
        schema_version=2,
        plan=plan,
        endpoint=Endpoint(base_url="http://h/v1"),
        environment={},
        tasks=(task,),
        loads=(),
        exit_code=0,
        started_at="2026-11-20T00:00:00+00:00",
        wall_s=1.0,
    )
    return report, task


def test_the_drift_chart_leaves_it_out_and_says_why():
    result = _tally(_task(aggregation=BY_SET), _samples("a"), ["1"]).result()
    assert "mean of the means per set" in (_unfit(*_report(result)) or "")
    assert _unfit(*_report(_tally(_task(), _samples("a"), ["1"]).result())) is None


@pytest.mark.parametrize("aggregation", [MEAN, BY_SET])
def test_its_spread_is_not_measured_on_its_scores(tmp_path, aggregation):
    report, _ = _report(_tally(_task(aggregation=aggregation), _samples("a"), ["1"]).result())
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(report))
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores/t.jsonl").write_text(
        '{"id":"s0","value":1.0,"outcome":"correct","target":"1"}\n'
    )
    if aggregation is MEAN:
        assert measure_run(tmp_path)[0].value == 100.0
        return
    with pytest.raises(RunFolderError, match="mean of the means per set"):
        measure_run(tmp_path)
