from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import (
    Acceptance,
    AnchorComparison,
    Endpoint,
    PairedComparison,
    Plan,
    Report,
    RunError,
    Spec,
    Suite,
    SuiteRun,
    Verdict,
    VerdictOutcome,
    Waiver,
    WaiverState,
)
from serve_eval.stats.finding import finding
from serve_eval.verdicts.references import AcceptanceLength
from serve_eval.verdicts.rules._acceptance import judge as acceptance
from serve_eval.workflows.suite.judgement import (
    EndedRun,
    correct_rows,
    find_certain_fail,
    judge,
    share_errors,
)
from tests.made_results import make_result, make_task_report

TODAY = date(2026, 11, 21)
PASS, FAIL, ERROR = VerdictOutcome.PASS, VerdictOutcome.FAIL, VerdictOutcome.ERROR
INCONCLUSIVE, NO_REFERENCE = VerdictOutcome.INCONCLUSIVE, VerdictOutcome.NO_REFERENCE
OUTCOMES = {"PASS": PASS, "SMALL_DROP": PASS, "FAIL": FAIL, "INCONCLUSIVE": INCONCLUSIVE}


def _paired(p, excluded, alpha=0.05):
    """Return a single run's comparison.

    The finding follows from p and from whether a drop of a point is excluded.
    """
    lower = -0.5 if excluded else -1.5
    found = "INCONCLUSIVE" if p is None else finding(p, alpha, lower, 1.0).value
    counts = {"reference_runs": 1, "pairs": 1000, "missing": 0, "down": 1, "up": 1}
    numbers = {
        "difference": 0.0,
        "se": 0.1,
        "df": None,
        "flip_rate": 0.1,
        "p_exact": p,
        "upper": 1.0,
    }
    return PairedComparison(
        **counts,
        **numbers,
        method="mcnemar_midp",
        p=p,
        alpha=alpha,
        margin=1.0,
        lower=lower,
        noninferior=excluded,
        equivalent=False,
        finding=found,
    )


def _verdict(task, outcome=PASS, rule="classic", **more):
    return replace(
        Verdict(task=task, outcome=outcome, rule=rule, evaluated=70.0, reference=71.0), **more
    )


def _gate(task, p, excluded, rule="paired", alpha=0.05):
    told = _paired(p, excluded, alpha)
    warnings = ("small_drop: the drop is real",) if told.finding == "SMALL_DROP" else ()
    return _verdict(task, OUTCOMES[told.finding], rule, paired=told, warnings=warnings)


def _plan(*tasks):
    launcher = Spec(name="external", options={"base_url": "http://h:1/v1"})
    return Plan(model="org/m", launcher=launcher, tasks=tuple(Spec(name=task) for task in tasks))


def _task(verdict):
    result = make_result(1000, verdict.evaluated, task=verdict.task, bounds=None)
    return make_task_report(result, verdict)


def _ended(name, *verdicts, **attributes):
    plan = _plan(*(verdict.task for verdict in verdicts))
    report = Report(
        schema_version=2,
        plan=plan,
        endpoint=Endpoint(base_url="http://h:1/v1"),
        environment={},
        tasks=tuple(map(_task, verdicts)),
        loads=(),
        exit_code=0,
        started_at="",
        wall_s=1.0,
    )
    return EndedRun(run=SuiteRun(name=name, plan=plan, attributes=attributes), report=report)


def _stopped(name, code, *tasks):
    error = RunError(kind="EndpointError", message="gone", hint="", exit_code=code)
    return EndedRun(run=SuiteRun(name=name, plan=_plan(*tasks)), error=error)


def _waiver(until=TODAY, **match):
    return Waiver(match=match, reason="issue 12", until=until)


def _judge(ended, *waivers, strict=False):
    return judge(ended, waivers, TODAY, strict=strict)


# --------------------------------------------------------------------------------------------------
# many tests


def _row(place, p, excluded, rule):
    return judge([_ended(f"r{place}", _gate("mmlu", p, excluded, rule))], [], TODAY).rows[0]


def test_one_paired_gate_is_judged_as_it_is_alone():
    for p, excluded in ((0.04, False), (0.04, True), (0.2, False), (0.2, True), (None, False)):
        row = _row(0, p, excluded, "paired")
        assert (row.outcome, row.p_holm, row.q_bh) == (row.own, p, p)


def test_a_drop_that_only_many_tests_prove_fails_no_suite():
    many = [_ended(f"r{i}", _gate("mmlu", 0.5, True)) for i in range(9)]
    judged = _judge([_ended("odd", _gate("mmlu", 0.02, False)), *many])
    odd = judged.rows[0]
    assert (odd.own, odd.outcome, odd.finding) == (FAIL, INCONCLUSIVE, "INCONCLUSIVE")
    assert (odd.p, odd.p_holm) == (0.02, pytest.approx(0.2))
    assert odd.q_bh == pytest.approx(0.2)
    assert "p 0.0200 becomes 0.2000 (Holm)" in odd.reasons[-1]
    assert (judged.exit_code, judged.verdict) == (3, "INCONCLUSIVE")
    clear = _judge([_ended("odd", _gate("mmlu", 0.004, False)), *many])
    assert (clear.rows[0].outcome, clear.exit_code, clear.verdict) == (FAIL, 1, "FAIL")


@pytest.mark.parametrize(
    ("p", "others", "outcome", "proven"),
    [
        (0.0249, 1, FAIL, "drop"),
        (0.0251, 1, INCONCLUSIVE, ""),
        (0.0049, 9, FAIL, "drop"),
        (0.0051, 9, INCONCLUSIVE, ""),
    ],
)
def test_the_limit_of_a_corrected_p_is_alpha(p, others, outcome, proven):
    many = [_ended(f"r{i}", _gate("mmlu", 0.9, True)) for i in range(others)]
    row = _judge([_ended("odd", _gate("mmlu", p, False)), *many]).rows[0]
    assert (row.outcome, row.proven) == (outcome, proven)
    # Rules outside of the gates are not corrected, but a drop is named by all tests together.
    alone = _judge([_ended("odd", _gate("mmlu", p, False, "noninferiority")), *many]).rows[0]
    assert (alone.outcome, alone.proven) == (FAIL, proven)


@pytest.mark.parametrize(
    ("p_rise", "lower", "proven"),
    [(0.0249, 0.1, "rise"), (0.0251, 0.1, ""), (0.0249, 0.0, ""), (None, 0.1, "")],
)
def test_a_rise_is_named_that_all_tests_together_prove(p_rise, lower, proven):
    rows = [_row(place, 0.9, True, "paired") for place in (0, 1)]
    rows[0] = replace(rows[0], p_rise=p_rise, difference_interval=(lower, 2.0))
    row, other = correct_rows(rows)
    assert (row.proven, row.proven_p) == (proven, pytest.approx(0.0498) if proven else None)
    assert (other.proven, other.proven_p) == ("", None)


def test_a_small_drop_that_only_many_tests_prove_is_a_plain_pass():
    many = [_ended(f"r{i}", _gate("mmlu", 0.5, True)) for i in range(9)]
    row = _judge([_ended("odd", _gate("mmlu", 0.02, True)), *many]).rows[0]
    assert (row.own, row.outcome, row.finding) == (PASS, PASS, "PASS")
    assert not any(warning.startswith("small_drop") for warning in row.warnings)


def test_the_anchors_gate_is_corrected_by_its_own_p():
    told = _gate("mmlu", 0.5, True, "anchors")
    assert told.paired is not None
    lost = AnchorComparison(
        anchors=200, reference_lost=0, candidate_lost=5, p=0.02, p_range=(0.02, 0.02)
    )
    told = replace(told, outcome=FAIL, paired=replace(told.paired, anchors=lost))
    alone = _judge([_ended("odd", told)]).rows[0]
    assert (alone.outcome, alone.p, alone.p_holm) == (FAIL, 0.02, 0.02)
    many = [_ended(f"r{i}", _gate("mmlu", 0.5, True)) for i in range(9)]
    row = _judge([_ended("odd", told), *many]).rows[0]
    assert (row.own, row.outcome, row.p_holm) == (FAIL, PASS, pytest.approx(0.2))
    assert row.reasons == ()
    said = "a loss among the anchors is not proven after correction for the suite's tests"
    assert said in row.warnings[-1]


def test_verdicts_of_the_classic_gate_and_noninferiority_are_not_corrected():
    rules = [
        _ended(f"{rule}{i}", _gate("mmlu", 0.02, False, rule))
        for rule in ("classic", "noninferiority")
        for i in (1, 2)
    ]
    rows = _judge([*rules, _ended("gate", _gate("mmlu", 0.04, False))]).rows
    assert [row.outcome for row in rows] == [FAIL] * 5
    assert [row.p_holm for row in rows] == [pytest.approx(0.1)] * 4 + [0.04]
    assert [row.tests for row in rows] == [5] * 4 + [1]
    assert all(row.q_bh == pytest.approx(0.025) for row in rows[:4])


@pytest.mark.parametrize("rule", ["classic", "noninferiority", "paired"])
@pytest.mark.parametrize(
    ("excluded", "alone", "corrected"),
    [(True, "SMALL_DROP", "PASS"), (False, "FAIL", "INCONCLUSIVE")],
)
def test_findings_are_corrected_under_every_rule(rule, excluded, alone, corrected):
    many = [_ended(f"r{i}", _gate("mmlu", 0.5, True, rule)) for i in range(9)]
    odd = _judge([_ended("odd", _gate("mmlu", 0.02, excluded, rule)), *many]).rows[0]
    assert (odd.finding, odd.p_holm, odd.tests) == (corrected, pytest.approx(0.2), 10)
    assert (odd.proven, odd.proven_p) == ("", None)
    assert not any(warning.startswith("small_drop") for warning in odd.warnings)
    assert odd.outcome is odd.own or rule == "paired"
    clear = _judge([_ended("odd", _gate("mmlu", 0.004, excluded, rule)), *many]).rows[0]
    assert (clear.finding, clear.p_holm) == (alone, pytest.approx(0.04))


def test_a_lost_acceptance_length_fails_the_suite_whatever_the_correction_says():
    many = [_ended(f"r{i}", _gate("mmlu", 0.5, True)) for i in range(9)]
    entry, told = (
        AcceptanceLength(ref_al=2.0, min_al=1.9),
        Acceptance(answers=1000, length=1.5, all_steps=1.5, per_answer=1.5),
    )
    gate = _gate("mmlu", 0.02, False)
    lost = acceptance(gate, _task(gate).result, told, "A::b", entry)
    judged = _judge([_ended("odd", lost), *many])
    assert (judged.rows[0].outcome, judged.rows[0].finding) == (FAIL, "INCONCLUSIVE")
    assert judged.exit_code == 1
    assert "below 1.900" in judged.rows[0].reasons[-1]


P = st.one_of(st.none(), st.floats(0, 1))
ROWS = st.lists(
    st.tuples(P, st.booleans(), st.sampled_from(["paired", "classic", "noninferiority"])),
    max_size=12,
)


@given(ROWS)
def test_the_correction_only_ever_takes_a_proof_away(
    given_rows,
):
    before = [_row(i, *one) for i, one in enumerate(given_rows)]
    after = correct_rows([replace(row, p_holm=None, q_bh=None) for row in before])
    for old, new, (p, excluded, rule) in zip(before, after, given_rows, strict=True):
        assert (new.p_holm is None) == (new.q_bh is None) == (new.tests is None) == (p is None)
        if new.p_holm is None or p is None:
            assert (new.outcome, new.finding) == (old.own, old.finding)
        else:
            assert new.p_holm >= p
            expected = finding(new.p_holm, 0.05, -0.5 if excluded else -1.5, 1.0).value
            assert new.finding == expected
            assert new.outcome is (OUTCOMES[expected] if rule == "paired" else old.own)
            assert new.outcome is old.own or (old.own, new.outcome) == (FAIL, INCONCLUSIVE)


def test_a_stricter_alpha_of_a_reference_stays():
    assert _row(0, 0.01, False, "paired").outcome is FAIL
    strict = judge([_ended("r", _gate("mmlu", 0.01, False, alpha=0.002))], [], TODAY).rows[0]
    assert strict.outcome is INCONCLUSIVE


# --------------------------------------------------------------------------------------------------
# the exit code


@pytest.mark.parametrize(
    ("ended", "code", "strict_code", "word"),
    [
        ([_ended("a", _verdict("mmlu"), _verdict("gsm8k"))], 0, 0, "PASS"),
        ([_ended("a", _verdict("mmlu", FAIL)), _stopped("b", 4, "mmlu")], 1, 1, "FAIL"),
        (
            [_ended("a", _verdict("mmlu")), _stopped("b", 4, "mmlu"), _stopped("c", 2, "mmlu")],
            4,
            4,
            "ERROR",
        ),
        ([_ended("a", _verdict("mmlu", INCONCLUSIVE)), _stopped("b", 2, "mmlu")], 2, 2, "ERROR"),
        ([_ended("a", _verdict("mmlu", ERROR)), _stopped("b", 2, "mmlu")], 4, 4, "ERROR"),
        ([_ended("a", _verdict("mmlu")), _stopped("b", 3, "mmlu")], 3, 1, "INCONCLUSIVE"),
        ([_ended("a", _verdict("mmlu", NO_REFERENCE))], 3, 1, "INCONCLUSIVE"),
        ([_ended("a", _verdict("mmlu", VerdictOutcome.NOT_JUDGED))], 0, 0, "INTEGRATION TEST"),
        ([_ended("a", _verdict("mmlu", VerdictOutcome.SHARD))], 0, 0, "SHARD"),
    ],
)
def test_the_worst_of_all_runs_is_the_suites(ended, code, strict_code, word):
    judged = _judge(ended)
    assert (judged.exit_code, judged.verdict) == (code, word)
    assert _judge(ended, strict=True).exit_code == strict_code


def test_a_run_that_was_stopped_has_a_row_for_each_of_its_tasks():
    rows = _judge([_stopped("b", 4, "mmlu", "gsm8k")]).rows
    assert [(row.task, row.outcome, row.reasons) for row in rows] == [
        (t, ERROR, ("gone",)) for t in ("mmlu", "gsm8k")
    ]


# --------------------------------------------------------------------------------------------------
# the waivers


@pytest.mark.parametrize(
    ("days", "code", "state"), [(1, 0, "applied"), (0, 0, "applied"), (-1, 1, "expired")]
)
def test_a_waiver_holds_up_to_and_including_its_day(days, code, state):
    waiver = _waiver(TODAY + timedelta(days=days), name="a", task="mmlu")
    judged = _judge([_ended("a", _verdict("mmlu", FAIL), _verdict("gsm8k"))], waiver)
    assert (judged.exit_code, judged.waivers[0].state) == (code, state)
    assert judged.waivers[0].failing == ("a/mmlu",)
    assert judged.rows[0].outcome is FAIL
    assert judged.rows[0].waiver == (waiver if code == 0 else None)
    assert judged.rows[1].waiver is None


def test_a_waiver_covers_no_other_fail():
    judged = _judge(
        [_ended("a", _verdict("mmlu", FAIL), _verdict("gsm8k", FAIL))], _waiver(task="mmlu")
    )
    assert (judged.exit_code, [row.waiver is None for row in judged.rows]) == (1, [False, True])


@pytest.mark.parametrize("outcome", [INCONCLUSIVE, NO_REFERENCE, ERROR])
def test_only_a_fail_can_be_waived(outcome):
    judged = _judge([_ended("a", _verdict("mmlu", outcome))], _waiver(name="a"))
    assert judged.exit_code != 0
    assert judged.waivers[0].state is WaiverState.UNDECIDED
    assert _judge([_stopped("a", 4, "mmlu")], _waiver(name="a")).exit_code == 4


def test_a_known_fail_that_the_correction_made_inconclusive_is_still_waived():
    many = [_ended(f"r{i}", _gate("mmlu", 0.5, True)) for i in range(9)]
    judged = _judge([_ended("odd", _gate("mmlu", 0.02, False)), *many], _waiver(name="odd"))
    assert (judged.rows[0].outcome, judged.exit_code) == (INCONCLUSIVE, 0)


def test_a_waiver_that_is_not_needed_or_names_nothing_is_said():
    ended = [
        _ended("a", _verdict("mmlu"), size="8B"),
        _ended("b", _verdict("mmlu", FAIL), size="70B"),
    ]
    patterns = [{"attributes": {"size": "8B"}}, {"task": "gpqa"}, {"model": "org/m"}]
    states = [
        use.state for use in _judge(ended, *(_waiver(**pattern) for pattern in patterns)).waivers
    ]
    assert states == [WaiverState.NOT_NEEDED, WaiverState.NO_MATCH, WaiverState.APPLIED]


def test_the_first_waiver_that_holds_is_the_one_that_is_shown():
    old, first, second = (
        _waiver(date(2020, 1, 1), name="a"),
        _waiver(task="mmlu"),
        _waiver(name="a"),
    )
    (row,) = _judge([_ended("a", _verdict("mmlu", FAIL))], old, first, second).rows
    assert row.waiver is first


# --------------------------------------------------------------------------------------------------
# a suite that ends when its verdict is certain


def _suite(*ended, waivers=()):
    return Suite(name="s", runs=tuple(one.run for one in ended), waivers=waivers)


P = st.one_of(st.sampled_from([1e-9, 0.004, 0.0063, 0.02, 0.049]), st.floats(0.0, 1.0))


@given(st.lists(P, min_size=1, max_size=8), st.data())
def test_a_certain_fail_is_one_whatever_the_other_runs_give(p, data):
    ended = [_ended(f"r{i}", _gate("mmlu", one, False)) for i, one in enumerate(p)]
    waivers = (_waiver(name="r0"),) if data.draw(st.booleans()) else ()
    known = data.draw(st.integers(0, len(p)))
    found = find_certain_fail(ended[:known], _suite(*ended, waivers=waivers), TODAY)
    judged = _judge(ended, *waivers)
    fails = [row.run for row in judged.rows if row.outcome is FAIL and row.waiver is None]
    if found is not None:
        assert found.run in fails
        assert judged.exit_code == 1
    elif known == len(p):
        assert not fails


def test_tests_that_were_not_made_count_in_the_correction():
    odd, rest = _ended("odd", _gate("mmlu", 0.02, False)), _ended("rest", _gate("mmlu", 0.9, True))
    suite = _suite(odd, rest)
    assert find_certain_fail([odd], suite, TODAY).run == "odd"
    many = [_ended(f"r{i}", _gate("mmlu", 0.9, True)) for i in range(9)]
    assert find_certain_fail([odd], _suite(odd, *many), TODAY) is None
    classic = [_ended(f"c{i}", _verdict("mmlu")) for i in range(9)]
    named = [replace(one.run, plan=replace(one.run.plan, rule_named=True)) for one in classic]
    alone = Suite(name="s", runs=(odd.run, *named))
    assert find_certain_fail([odd], alone, TODAY).run == "odd"


def test_what_was_not_asked_is_undecided_and_never_passes():
    sound = _ended("a", _verdict("mmlu"))
    rest = EndedRun(_ended("b", _verdict("mmlu")).run, not_asked="max_tokens_total: spent")
    judged = _judge([sound, rest])
    assert [row.outcome.value for row in judged.rows] == ["PASS", "NOT ASKED"]
    assert judged.rows[1].reasons == ("max_tokens_total: spent",)
    assert (judged.exit_code, judged.verdict) == (3, "INCONCLUSIVE")
    failed = _ended("a", _verdict("mmlu", FAIL))
    assert _judge([failed, rest]).exit_code == 1
    assert _judge([failed, rest], _waiver(name="a")).exit_code == 3


def test_a_fail_by_looks_takes_its_place_in_the_correction():
    looked = replace(_row(0, None, False, "paired"), own=FAIL, outcome=FAIL, unasked=50)
    row = replace(_row(1, 0.03, False, "paired"), run="other")
    first, second = correct_rows([looked, row])
    assert (first.outcome, first.p_holm) == (FAIL, None)
    assert (second.outcome, second.p_holm, second.tests) == (FAIL, 0.03, 2)
    passed = replace(looked, own=PASS, outcome=PASS)
    assert correct_rows([passed, row])[1].outcome is INCONCLUSIVE


def test_a_test_after_looks_has_the_alpha_that_they_left():
    row = _row(0, 0.02, False, "paired")
    left = replace(row, alpha=0.025)
    other = replace(_row(1, 0.9, True, "paired"), run="other")
    assert correct_rows([row, other])[0].outcome is FAIL
    assert correct_rows([left, other])[0].outcome is INCONCLUSIVE


def test_a_run_shares_the_errors_of_all_tests_that_may_be_gates():
    a, b = _ended("a", _verdict("mmlu"), _verdict("gsm8k")), _ended("b", _verdict("mmlu"))
    suite = _suite(a, b, waivers=(_waiver(name="a", task="mmlu"),))
    part = share_errors(suite, a.run, TODAY)
    assert (part.tests, part.waived, part.ends) == (3, {"mmlu"}, False)
    over = share_errors(suite, a.run, TODAY + timedelta(days=1))
    assert over.waived == frozenset()
    classic = replace(b.run, plan=replace(b.run.plan, rule_named=True))
    fewer = replace(suite, runs=(a.run, classic), end_when_certain=True)
    assert (share_errors(fewer, a.run, TODAY).tests, share_errors(fewer, b.run, TODAY).ends) == (
        2,
        True,
    )
