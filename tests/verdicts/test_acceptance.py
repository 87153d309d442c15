"""Test speculative decoding: the formulas, the rule and a run up to the verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.traffic import TrafficCounter
from serve_eval.errors import PlanError, ReferenceFileError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    Acceptance,
    Plan,
    Response,
    Spec,
    Usage,
    Verdict,
    VerdictOutcome,
)
from serve_eval.verdicts.exit_code import exit_code
from serve_eval.verdicts.references import AcceptanceLength
from serve_eval.verdicts.rules._acceptance import RULE, judge
from tests.made_results import make_result

pytestmark = pytest.mark.usefixtures("simulated_here")

ENTRY = AcceptanceLength(ref_al=2.0, min_al=1.9)


def _told(*answers):
    counter = TrafficCounter()
    for tokens, per_step in answers:
        usage = Usage(completion_tokens=tokens)
        counter.see(Response(text="x", finish_reason="stop", usage=usage, tokens_per_step=per_step))
    return counter.traffic().acceptance


@given(st.lists(st.lists(st.integers(0, 7), max_size=40), min_size=1, max_size=20))
def test_it_is_the_suite_s_figure_over_the_steps_that_had_drafts(accepted):
    """Each answer has a first step of one token, then steps that accept draft tokens."""
    answers = [(1 + sum(steps) + len(steps), 1 + len(steps)) for steps in accepted]
    told = _told(*((tokens, tokens / steps) for tokens, steps in answers))
    assert told is not None
    with_drafts = sum(len(steps) for steps in accepted)
    if with_drafts == 0:
        assert told.length is None
    else:
        assert told.length == pytest.approx((sum(map(sum, accepted)) + with_drafts) / with_drafts)
    assert told.all_steps == pytest.approx(sum(t for t, _ in answers) / sum(i for _, i in answers))
    assert told.per_answer == pytest.approx(sum(t / i for t, i in answers) / len(answers))


def test_answers_that_do_not_tell_are_left_out():
    assert _told((10, None), (0, 2.0)) is None
    told = _told((10, None), (21, 21 / 11))
    assert (told.answers, told.length) == (1, pytest.approx(2.0))


def _verdict(outcome):
    return Verdict(task="t", outcome=outcome, rule="paired", evaluated=50.0)


def _result(scored=100):
    return make_result(scored, 50.0)


@pytest.mark.parametrize(
    ("outcome", "answers", "length", "expected", "rule"),
    [
        ("PASS", 100, 1.9, "PASS", "paired"),
        ("PASS", 100, 1.8999, "FAIL", RULE),
        ("PASS", 98, 1.5, "FAIL", RULE),
        ("PASS", 97, 2.5, "INCONCLUSIVE", "paired"),
        ("PASS", 100, None, "INCONCLUSIVE", "paired"),
        ("FAIL", 100, 2.5, "FAIL", "paired"),
        ("FAIL", 100, 1.5, "FAIL", RULE),
        ("FAIL", 100, None, "FAIL", "paired"),
        ("INCONCLUSIVE", 100, 1.5, "FAIL", RULE),
        ("NO REFERENCE", 100, 1.5, "FAIL", RULE),
        ("NO REFERENCE", 100, 2.5, "NO REFERENCE", "paired"),
        ("INTEGRATION TEST", 100, 1.5, "INTEGRATION TEST", "paired"),
        ("UNSUPPORTED", 0, None, "UNSUPPORTED", "paired"),
        ("ERROR", 0, None, "ERROR", "paired"),
    ],
)
def test_the_rule(outcome, answers, length, expected, rule):
    told = (
        Acceptance(answers=answers, length=length, all_steps=1.0, per_answer=1.0)
        if answers
        else None
    )
    verdict = judge(_verdict(VerdictOutcome(outcome)), _result(), told, "A::b", ENTRY)
    assert (verdict.outcome.value, verdict.rule) == (expected, rule)
    assert (verdict.acceptance.reference, verdict.acceptance.least) == (2.0, 1.9)
    known = length if answers >= 98 else None
    passed = None if known is None else known >= 1.9
    assert (verdict.acceptance.length, verdict.acceptance.passed) == (known, passed)
    assert exit_code([verdict]) == {"PASS": 0, "INTEGRATION TEST": 0, "FAIL": 1, "ERROR": 4}.get(
        expected, 3
    )


@pytest.mark.parametrize(
    ("tokens_per_step", "outcome"), [(3.0, "NO REFERENCE"), (1.05, "FAIL"), (None, "UNSUPPORTED")]
)
async def test_a_run_is_judged_by_it(data_root, tmp_path, tokens_per_step, outcome):
    (tmp_path / "references").mkdir()
    (tmp_path / "references/acceptance_length.yaml").write_text(
        "mine: {ref_al: 2.0, min_al: 1.9}\n"
    )
    plan = Plan(
        model="simulated",
        launcher=Spec(
            name="simulated", options={"accuracy": 1.0, "tokens_per_step": tokens_per_step}
        ),
        tasks=(Spec(name="gsm8k", options={"acceptance_length": "mine"}),),
        dataset_roots=(str(data_root),),
        references_dir=str(tmp_path / "references"),
        limit=5,
        no_reference=True,
    )
    report = await evaluate(plan, tmp_path / "out", environ={})
    [task] = report.tasks
    assert task.verdict.outcome.value == outcome
    assert (task.traffic.acceptance is None) == (tokens_per_step is None)


async def test_an_entry_that_is_not_there_is_named_before_anything_is_asked(data_root, tmp_path):
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="gsm8k", options={"acceptance_length": "TestGPTOS::test_dflash"}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    with pytest.raises(ReferenceFileError, match="Did you mean 'TestGPTOSS::test_dflash'"):
        await evaluate(plan, tmp_path / "out", environ={})


def test_it_changes_nothing_that_is_asked():
    plain, judged = (
        build_task(Spec(name="gsm8k", options=o)) for o in ({}, {"acceptance_length": "A::b"})
    )
    assert plain.protocol == judged.protocol
    with pytest.raises(PlanError, match="this task requests none"):
        build_task(
            Spec(name="perplexity", options={"acceptance_length": "A::b"}), "tasks[0].perplexity"
        )
