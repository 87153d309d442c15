"""Another max_tokens than the reference's explains a drop only by the answers that it cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Limits, Plan, Spec, VerdictOutcome
from serve_eval.workflows.diagnose.causes import find_leads
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.story import diagnose
from serve_eval.workflows.references.register import register
from tests.workflows.diagnose.server import Asked, Said, Server, answers_to, plan_for, run, sound

THERE, HERE = 128, 100
"""The limits of the reference and of the run."""
DIFFERENT = "the reference was measured under a different protocol"


def _spoil(cut: float, wrong: float) -> Callable[[Asked], Said]:
    """Return a server that cuts this share of the answers, and answers that of others wrongly."""

    def act(asked: Asked) -> Said:
        if asked.chance("spoilt") < cut:
            limit = int(asked.body["max_tokens"])
            return Said(text="First,", finish="length", tokens=limit)
        return sound(asked, accuracy=0.0 if asked.chance("spoilt") < cut + wrong else 0.95)

    return act


def _measure(
    folder: Path,
    before: Callable[[Asked], Said],
    after: Callable[[Asked], Said],
    **options: object,
) -> tuple[list[Finding], str]:
    """Return the findings, and the likely cause, of a run with another limit than before."""
    plan = plan_for(folder, num_samples=250, max_tokens=THERE)
    answers = answers_to(plan.tasks[0])
    first = replace(plan, no_reference=True, references_dir=None)
    run(first, Server(act=before, answers=answers), folder / "a")
    register([folder / "a"], folder / "own")
    task = Spec(name="word_problems", options={"num_samples": 250, "max_tokens": HERE, **options})
    here = replace(
        plan,
        tasks=(task,),
        references_dir=str(folder / "own"),
        allow_mismatch=("max_tokens", *options),
    )
    run(here, Server(act=after, answers=answers), folder / "b")
    causes = find_leads(read_folder(folder / "b")).causes
    return list(diagnose(folder / "b").runs[0].findings), causes.get("word_problems", "")


@pytest.mark.parametrize(
    ("before", "cut", "wrong", "told"),
    [
        (0.0, 0.0, 0.4, "0 of 250 answers are cut, which explains at most 0.0 of the 40.8 points"),
        (
            0.0,
            0.05,
            0.4,
            "12 of 250 answers are cut, which explains at most 4.8 of the 45.6 points",
        ),
        (0.4, 0.4, 0.3, "in the reference's runs), which explains at most 0.0 of"),
    ],
)
def test_a_limit_that_cuts_too_few_answers_is_a_remark(
    before: float, cut: float, wrong: float, told: str, tmp_path: Path
) -> None:
    found, cause = _measure(tmp_path, _spoil(before, 0.0), _spoil(cut, wrong))
    [other] = [one for one in found if one.rule == "protocol"]
    assert all(one.rule in ("protocol", "truncated") for one in found[1:])
    assert (other.minor, other.leads) == (True, False)
    assert told in other.told
    assert found[0].rule == "even_loss"
    assert cause.startswith("weights, precision, chat template or sampling")


def test_a_limit_that_cuts_most_of_the_lost_answers_stays_likely(tmp_path: Path) -> None:
    found, cause = _measure(tmp_path, sound, _spoil(0.4, 0.05))
    [other] = [one for one in found if one.rule == "protocol"]
    assert (other.minor, other.leads) == (False, True)
    assert "wrong answers end at exactly max_tokens=100" in cause
    assert "even_loss" not in [one.rule for one in found]


def test_another_field_stays_likely_whatever_the_limit_cuts(tmp_path: Path) -> None:
    found, cause = _measure(tmp_path, sound, _spoil(0.0, 0.4), temperature=0.5)
    [other] = [one for one in found if one.rule == "protocol"]
    assert (other.minor, other.leads) == (False, True)
    assert cause.startswith(f"{DIFFERENT}: ")
    assert "temperature" in cause


def test_damaged_weights_are_named_where_the_limit_cuts_nothing(tmp_path: Path) -> None:
    async def ask(damage: str, limit: int, folder: Path, **options: object) -> VerdictOutcome:
        async with serve_app(create_app(WEIGHTS, {"m": damage})) as url:
            task = Spec(name="word_problems", options={"num_samples": 200, "max_tokens": limit})
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=(task,),
                limits=Limits(concurrency=32),
                **options,  # type: ignore[arg-type]
            )
            return (await evaluate(plan, folder, environ={})).tasks[0].verdict.outcome

    asyncio.run(ask("none", THERE, tmp_path / "sound", no_reference=True))
    register([tmp_path / "sound"], tmp_path / "own")
    judged = {"references_dir": str(tmp_path / "own"), "allow_mismatch": ("max_tokens",)}
    outcome = asyncio.run(ask("int3", HERE, tmp_path / "damaged", **judged))
    assert outcome is VerdictOutcome.FAIL
    [cause] = find_leads(read_folder(tmp_path / "damaged")).causes.values()
    assert "weights, precision" in cause
