"""Suites that end once a FAIL is certain, or once the tokens of all runs are spent."""

from dataclasses import replace
from datetime import date

import pytest

from serve_eval.schema import Limits, Plan, Spec, Suite, SuiteRun, Waiver
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.suite.execution import judge_suite_again
from tests.json_files import read_json
from tests.workflows.suite.test_execution import TODAY, Servers, _damaged, _evaluate

N = 60


@pytest.fixture
def plan(data_root, tmp_path):
    (tmp_path / "references").mkdir()
    (tmp_path / "references/gsm8k.yaml").write_text(
        "simulated:\n  - accuracy: 90.0\n    source: declared\n"
    )
    return Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={"accuracy": 0.9}),
        tasks=(Spec(name="gsm8k", options={"num_samples": N}),),
        dataset_roots=(str(data_root),),
        references_dir=str(tmp_path / "references"),
        limits=Limits(concurrency=4),
    )


@pytest.fixture
def suite(plan):
    """Return a suite whose second run of three is damaged; each has a server of its own."""
    bad = _damaged(plan, damage=0.6)
    third = _damaged(plan, damage=0.0)
    plans = {"a": plan, "bad": bad, "c": third}
    runs = tuple(SuiteRun(name=name, plan=one) for name, one in plans.items())
    return Suite(name="tests", runs=runs, end_when_certain=True)


def _outcomes(report):
    return [row.outcome.value for row in report.rows]


def test_the_runs_after_a_certain_fail_are_not_asked(suite, tmp_path):
    servers, said = Servers(), []
    report = _evaluate(suite, tmp_path / "out", servers, notify=said.append)
    assert _outcomes(report) == ["PASS", "FAIL", "NOT ASKED"]
    assert servers.events == ["start 0.0", "stop 0.0", "start 0.6", "stop 0.6"]
    assert (report.exit_code, report.verdict) == (1, "FAIL")
    why = "end_when_certain: not asked, since bad/gsm8k is FAIL"
    assert report.rows[2].reasons == (why,)
    assert report.runs[2].not_asked == why
    assert not (tmp_path / "out/runs/c").exists()
    total = sum(
        read_report(tmp_path / f"out/runs/{name}").cost.prompt_tokens for name in ("a", "bad")
    )
    assert report.cost.prompt_tokens == total > 0

    again = _evaluate(suite, tmp_path / "out", servers)
    assert _outcomes(again) == ["PASS", "FAIL", "NOT ASKED"]
    assert len(servers.events) == 4
    judged = judge_suite_again(tmp_path / "out", lambda place: read_report(place).plan)
    assert _outcomes(judged) == ["PASS", "FAIL", "NOT ASKED"]

    whole = _evaluate(replace(suite, end_when_certain=False), tmp_path / "out", servers)
    assert _outcomes(whole) == ["PASS", "FAIL", "PASS"]
    assert read_report(tmp_path / "out/runs/bad").tasks[0].result.scored == N


def test_a_fail_that_a_waiver_lets_through_ends_nothing(suite, tmp_path):
    waiver = Waiver(match={"name": "bad"}, reason="known", until=TODAY)
    report = _evaluate(replace(suite, waivers=(waiver,)), tmp_path / "out", Servers())
    assert _outcomes(report) == ["PASS", "FAIL", "PASS"]
    assert read_report(tmp_path / "out/runs/bad").tasks[0].result.scored == N
    assert report.exit_code == 0
    past = replace(waiver, until=date(2026, 11, 20))
    ended = _evaluate(replace(suite, waivers=(past,)), tmp_path / "other", Servers())
    assert _outcomes(ended) == ["PASS", "FAIL", "NOT ASKED"]


def test_all_runs_spend_one_sum_of_tokens_in_their_order(suite, tmp_path):
    whole = _evaluate(replace(suite, end_when_certain=False), tmp_path / "whole", Servers())
    each = (whole.cost.prompt_tokens + whole.cost.generated_tokens) / 3
    bound = round(1.5 * each)
    first = suite.runs[0]
    runs = tuple(
        replace(first, name=f"r{seed}", plan=replace(first.plan, seed=seed)) for seed in range(3)
    )
    sound = Suite(name="tests", runs=runs, max_tokens_total=bound)
    servers, out = Servers(), tmp_path / "out"
    report = _evaluate(sound, out, servers)
    assert _outcomes(report) == ["PASS", "INCONCLUSIVE", "NOT ASKED"]
    assert (report.exit_code, report.verdict) == (3, "INCONCLUSIVE")
    assert report.rows[2].reasons[0].startswith("max_tokens_total: not asked")
    spent = report.cost.prompt_tokens + report.cost.generated_tokens
    assert 0.6 * bound < spent < 1.1 * bound
    same = _evaluate(sound, out, servers)
    assert _outcomes(same) == ["PASS", "INCONCLUSIVE", "NOT ASKED"]
    more = _evaluate(replace(sound, max_tokens_total=100 * bound), out, servers)
    assert _outcomes(more) == ["PASS", "PASS", "PASS"]


def test_a_suite_ends_with_its_seconds_of_asking(suite, tmp_path):
    short = replace(suite, max_time_s=1e-6, end_when_certain=False)
    report = _evaluate(short, tmp_path / "out", Servers())
    assert report.exit_code == 3
    assert _outcomes(report)[2] == "NOT ASKED"
    asked = read_json(tmp_path / "out/suite_report.json")["runs"]
    assert asked[2]["not_asked"].startswith("max_time_s: not asked")
