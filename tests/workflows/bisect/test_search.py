"""Test the state of a search, from the options that differ to its ends."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from serve_eval.errors import PlanError
from serve_eval.report.document import print_document
from serve_eval.schema import (
    Bisection,
    BisectionResult,
    BisectionStep,
    Connection,
    Endpoint,
    Limits,
    PairedComparison,
    Plan,
    Report,
    Spec,
    Verdict,
    VerdictOutcome,
)
from serve_eval.workflows.bisect.configurations import (
    BisectRules,
    along_steps,
    between_plans,
    fill_in,
    list_changes,
    mix,
)
from serve_eval.workflows.bisect.document import make_document
from serve_eval.workflows.bisect.search import (
    ALPHA,
    begin_step,
    choose,
    end_search,
    end_step,
    weigh,
)
from serve_eval.workflows.bisect.testing import StepOutcome, plan_test, read_failure, read_result
from tests.made_results import make_result, make_task_report, make_traffic
from tests.workflows.bisect.searches import build_options, build_plan, build_steps

TASKS = (Spec(name="gsm8k"),)


def _plan(model="m", limits=None, **options):
    launcher = Spec(name="trtllm", options=options)
    return Plan(model=model, launcher=launcher, tasks=TASKS, limits=limits or Limits())


GOOD = _plan(tp=1, config={"kv": {"dtype": "auto", "free": 0.9}, "batches": [1, 2]}, env={"A": "1"})
BAD = _plan(
    tp=2,
    config={"kv": {"dtype": "fp8", "free": 0.9}, "batches": [1, 2, 4], "speculative": {"n": 3}},
    env={"A": "1", "MY_TOKEN": "secret"},
    limits=Limits(concurrency=8, order="natural"),
)
NAMES = ["tp", "config.kv.dtype", "config.batches", "config.speculative", "env.MY_TOKEN"]


def test_mappings_differ_by_leaf_and_lists_as_one_value():
    changes = list_changes(GOOD, BAD)
    assert [change.name for change in changes] == [*NAMES, "limits.concurrency"]
    shown = {change.name: (change.shown.good, change.shown.bad) for change in changes}
    assert shown["config.kv.dtype"] == ("auto", "fp8")
    assert shown["config.batches"] == ("[1,2]", "[1,2,4]")
    assert shown["config.speculative"] == ("not set", '{"n":3}')
    assert shown["env.MY_TOKEN"] == ("not set", "***")


def test_a_mixture_has_the_chosen_changes_alone():
    changes = list_changes(GOOD, BAD)
    assert mix(GOOD, []) == GOOD
    every = replace(BAD, limits=replace(BAD.limits, order=GOOD.limits.order))
    assert mix(GOOD, changes) == every
    some = mix(GOOD, changes[1:2])
    assert some.launcher.options["config"] == {
        "kv": {"dtype": "fp8", "free": 0.9},
        "batches": [1, 2],
    }
    back = list_changes(BAD, GOOD)
    assert mix(BAD, back).launcher.options == GOOD.launcher.options
    assert GOOD.launcher.options["config"] == {
        "kv": {"dtype": "auto", "free": 0.9},
        "batches": [1, 2],
    }


def test_options_can_keep_their_value_or_change_together():
    changes = list_changes(GOOD, BAD, keep=["launcher.config.kv", "limits"])
    assert [change.name for change in changes] == [name for name in NAMES if name[7:9] != "kv"]
    changes = list_changes(GOOD, BAD, together=[["tp", "env.MY_TOKEN"], ["config"]])
    assert [(change.name, len(change.leaves)) for change in changes] == [
        ("tp+env.MY_TOKEN", 2),
        ("config", 3),
        ("limits.concurrency", 1),
    ]
    with pytest.raises(PlanError, match=r"bisect\.keep: the plans do not differ in 'tpp'"):
        list_changes(GOOD, BAD, keep=["tpp"])
    with pytest.raises(PlanError, match="the launcher 'trtllm', the bad one 'vllm'"):
        list_changes(GOOD, replace(BAD, launcher=Spec(name="vllm")))


def test_a_launcher_option_named_like_a_part_of_the_plan_has_a_prefix():
    good, bad = _plan(model="a"), _plan(model="b")
    good = replace(good, launcher=Spec(name="trtllm", options={"model": "/a", "on": 1}))
    bad = replace(bad, launcher=Spec(name="trtllm", options={"model": "/b", "on": True}))
    assert [one.name for one in list_changes(good, bad)] == ["launcher.model", "on", "model"]
    header = replace(good, connection=Connection(headers={"X-Route": "new"}))
    assert [one.name for one in list_changes(good, header)] == ["connection.headers.X-Route"]


def test_configurations_have_names_of_what_is_changed_least():
    found = between_plans(GOOD, list_changes(GOOD, BAD, keep=["limits", "env"]))
    assert found.describe(0) == "good again"
    assert found.describe(15) == "bad"
    assert found.describe(0b0011) == "good + tp, config.kv.dtype"
    assert found.describe(0b1101) == "bad - config.kv.dtype"
    assert found.list_changed(0b1001) == ("tp", "config.speculative")
    steps = along_steps([GOOD, BAD, BAD], ["v1", "v2", "v3"])
    assert [steps.describe(i) for i in range(3)] == ["v1 again", "v2", "v3"]
    assert steps.good is GOOD
    with pytest.raises(PlanError, match="v1 is named twice"):
        along_steps([GOOD] * 3, ["v1", "v2", "v1"])


def test_a_step_is_filled_in_everywhere():
    content = {"launcher": {"image": "r:{step}", "args": ["{step}", 1]}, "{step}": None}
    assert fill_in(content, "v2") == {"launcher": {"image": "r:v2", "args": ["v2", 1]}, "v2": None}


WORSE, SAME = BisectionResult.WORSE, BisectionResult.SAME
UNDECIDED, NO_START = BisectionResult.UNDECIDED, BisectionResult.NO_START
OUT = Path("out")
THREE = build_options([], names=("a", "b", "c"))


def _state(found, results, **more):
    state = Bisection(
        schema_version=1,
        ordered=found.space.ordered,
        changes=found.changes,
        tasks=("t",),
        samples=400,
        margin=5.0,
        alpha=ALPHA,
        confidence=0.95,
        **{"exit_code": 3, "started_at": "", "wall_s": 0.0, **more},
    )
    for configuration, result in ((0, BisectionResult.REFERENCE), *results):
        state = begin_step(state, found, configuration, "runs/00")
        state = end_step(state, found, StepOutcome(result=result, asked=10), lambda step: step)
    return state


def _draw(state, found):
    buffer = io.StringIO()
    console = Console(file=buffer, width=80, highlight=False)
    print_document(make_document(state, found, OUT), console, verbose=True)
    return buffer.getvalue()


def test_the_bad_side_comes_first_and_must_be_decided():
    assert choose(_state(THREE, []), THREE, BisectRules(), None) == 7
    state = _state(THREE, [(7, UNDECIDED)])
    assert choose(state, THREE, BisectRules(), None) == "unconfirmed"
    ended = end_search(state, "unconfirmed")
    assert ended.exit_code == 3
    text = _draw(ended, THREE)
    assert " why      bad is neither worse than good nor the same" in text
    assert "give a larger --limit" in text


def test_three_undecided_steps_in_a_row_end_the_search():
    results = [(7, WORSE), (3, UNDECIDED), (5, NO_START), (1, UNDECIDED)]
    state = _state(THREE, results)
    assert isinstance(choose(state, THREE, BisectRules(), None), int)
    state = _state(THREE, [*results, (2, UNDECIDED)])
    assert choose(state, THREE, BisectRules(), None) == "weak"
    assert "3 steps in a row were undecided" in _draw(end_search(state, "weak"), THREE)
    state = _state(THREE, [*results, (2, SAME), (4, UNDECIDED)])
    assert isinstance(choose(state, THREE, BisectRules(), None), int)


def test_only_decided_steps_are_evidence():
    plain = weigh(THREE, _state(THREE, [(7, WORSE)]).steps)
    more = weigh(THREE, _state(THREE, [(7, WORSE), (1, UNDECIDED), (2, NO_START)]).steps)
    assert list(more.probabilities) == list(plain.probabilities)


def test_budgets_count_starts_and_gpu_hours_but_no_held_server():
    state = _state(THREE, [(7, WORSE)], starts=2, gpu_hours=0.5)
    following = choose(state, THREE, BisectRules(), None)
    assert isinstance(following, int)
    few = BisectRules(budget_starts=2)
    assert choose(state, THREE, few, None) == "budget"
    assert choose(state, THREE, few, THREE.server_of(following)) == following
    assert choose(state, THREE, BisectRules(budget_gpu_hours=0.5), None) == "budget"
    assert choose(state, THREE, BisectRules(budget_gpu_hours=0.6), None) == following


def test_each_conclusion_has_its_exit_code_and_its_words():
    together = [(7, WORSE), (3, WORSE), (1, SAME), (2, SAME), (6, SAME), (5, SAME)]
    either = [(7, WORSE), (1, WORSE), (2, WORSE), (4, SAME), (0, SAME), (6, WORSE), (5, WORSE)]
    steps = build_steps(1, steps=("v1", "v2", "v3"))
    cases = [
        (THREE, [(7, SAME)], 0, "no option: bad has no such drop against good"),
        (THREE, [(7, WORSE), (1, WORSE), (6, SAME)], 1, "culprit: served.a (false -> true)"),
        (THREE, together, 1, "culprits: these fail only together: served.a (false -> true), "),
        (THREE, either, 1, "culprits: each of these fails alone: served.a (false -> true), "),
        (THREE, [(7, WORSE), (1, WORSE), (4, WORSE), (2, WORSE), (0, WORSE)], 3, "good is worse"),
        (steps, [(2, SAME)], 0, "no step: v3 has no such drop against v1"),
        (steps, [(2, WORSE), (1, WORSE), (0, SAME)], 1, "culprit: v2, the first bad step; v1"),
    ]
    for found, results, code, words in cases:
        state = _state(found, results)
        assert choose(state, found, BisectRules(), None) == "found", words
        ended = end_search(state, "found")
        assert ended.exit_code == code, words
        text = _draw(ended, found)
        assert words in text
        assert (" next     serve-eval diagnose" in text) == (code == 1)


def _task(name, outcome, difference, p=0.5):
    paired = PairedComparison(
        reference_runs=1,
        pairs=100,
        missing=0,
        method="mcnemar",
        difference=difference,
        se=1.0,
        df=None,
        down=None,
        up=None,
        flip_rate=None,
        p=p,
        p_exact=None,
        alpha=0.005,
        margin=5.0,
        lower=difference - 2.0,
        upper=None,
        noninferior=True,
        equivalent=False,
        finding="PASS",
    )
    verdict = Verdict(
        task=name, outcome=outcome, rule="paired", evaluated=1.0, paired=paired, reasons=("why",)
    )
    result = make_result(100, 1.0, task=name, scored=90, failed=3, bounds=None, spared=7)
    traffic = make_traffic(93)
    return make_task_report(result, verdict, traffic=traffic)


def _report(*tasks):
    return Report(
        schema_version=1,
        plan=Plan(model="m", launcher=Spec(name="external"), tasks=()),
        endpoint=Endpoint(base_url=""),
        environment={},
        tasks=tasks,
        loads=(),
        exit_code=0,
        started_at="",
        wall_s=0.0,
    )


PASS, FAIL = VerdictOutcome.PASS, VerdictOutcome.FAIL


def test_the_task_that_fell_most_is_the_one_of_the_later_steps():
    tasks = (_task("a", FAIL, -6.0), _task("b", FAIL, -9.0), _task("c", PASS, 1.0))
    found = read_result(_report(*tasks))
    assert (found.result, found.task, found.difference, found.margin) == (WORSE, "b", -9.0, 4.5)
    assert found.asked == 3 * 93
    assert read_result(_report(_task("a", PASS, 0.0))).result is SAME
    mixed = _report(_task("a", PASS, 0.0), _task("b", VerdictOutcome.INCONCLUSIVE, -2.0))
    assert (read_result(mixed).result, read_result(mixed).reason) == (UNDECIDED, "why")


@pytest.mark.parametrize(
    ("outcome", "difference", "p", "result"),
    [
        (PASS, -3.0, 0.004, WORSE),  # The rule calls this a small drop; here, any drop counts.
        (FAIL, -3.2, 0.006, UNDECIDED),
        (PASS, 0.0, 0.5, SAME),
        (PASS, -3.5, 0.05, UNDECIDED),  # Nor is a drop of 5 points excluded.
        (VerdictOutcome.ERROR, -9.0, 0.001, UNDECIDED),
    ],
)
def test_without_a_margin_a_drop_is_shown_by_its_p(outcome, difference, p, result):
    report = _report(_task("a", outcome, difference, p))
    assert read_result(report, level=0.005, usual={"a": 5.0}).result is result


def test_a_test_asks_what_the_good_side_was_asked_on_the_servers_of_the_other():
    good = build_plan({"step": "a"}, samples=10)
    other = build_plan({"step": "b"}, samples=99)
    plan = plan_test(other, good, ("word_problems",), 2.5, OUT)
    assert (plan.launcher, plan.tasks) == (other.launcher, good.tasks)
    assert plan.verdict == Spec(name="noninferiority", options={"margin": 2.5})
    assert plan.early_stop is not None
    full = plan_test(other, good, ("word_problems",), None, OUT)
    assert (full.verdict.name, full.early_stop, full.no_reference) == ("paired", None, False)


def test_a_failure_to_start_has_its_first_line_as_the_reason():
    tested = read_failure(RuntimeError("status 1\nlog"))
    assert (tested.result, tested.reason, tested.asked) == (NO_START, "status 1", 0)
    step = BisectionStep(number=1, configuration=1, changes=(), folder="", result=NO_START)
    assert step.posterior is None
