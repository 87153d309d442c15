"""Choose the rule that judges a task."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.prepare import choose_rule
from serve_eval.protocol.fingerprint import sample_key
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    AccuracySpec,
    Aggregation,
    Dataset,
    Plan,
    Reference,
    ReferenceRuns,
    Sample,
    Spec,
)
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import SampleScores

SAMPLES = [Sample(id=str(i), prompt=f"p{i}", target="1") for i in range(12)]
PLAN = Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="gsm8k"),))
MAXIMUM = Aggregation(name="largest", of=lambda scored: max(s.value for _, s in scored))


@pytest.fixture
def taken(tmp_path: Path) -> Reference:
    """Return a reference with scores of the twelve samples."""
    keys = b"".join(map(sample_key, SAMPLES))
    scores = SampleScores(task="t", lo=0.0, hi=1.0, keys=keys, runs=(array("d", [1.0] * 12),))
    digest = reference_samples.write(tmp_path / "scores", scores)
    runs = ReferenceRuns(values=(100.0,), n=12, sigma=0.0, samples="scores", sha256=digest)
    file = str(tmp_path / "t.yaml")
    return Reference(task="t", model="m", spec=AccuracySpec(), value=100.0, runs=runs, file=file)


@pytest.mark.parametrize(
    ("plan", "change", "asked", "rule"),
    [
        (PLAN, lambda found: found, SAMPLES, "paired"),
        (PLAN, lambda found: found, SAMPLES[:10], "paired"),
        (PLAN, lambda found: found, SAMPLES[:9], "classic"),
        (PLAN, lambda found: replace(found, runs=None), SAMPLES, "classic"),
        (PLAN, lambda found: replace(found, threshold=90.0), SAMPLES, "classic"),
        (PLAN, lambda found: None, SAMPLES, "classic"),
        (
            PLAN,
            lambda found: found,
            [*SAMPLES, Sample(id="n", prompt="new", target="1")],
            "classic",
        ),
        (replace(PLAN, rule_named=True), lambda found: found, SAMPLES, "classic"),
        (
            replace(PLAN, verdict=Spec(name="noninferiority")),
            lambda found: found,
            SAMPLES,
            "noninferiority",
        ),
    ],
    ids=[
        *(
            "scores",
            "a subset",
            "nine prompts",
            "no scores",
            "a threshold",
            "no reference",
            "an unknown prompt",
        ),
        *("classic by name", "another rule"),
    ],
)
def test_scores_of_the_same_prompts_are_judged_one_by_one(
    taken: Reference,
    plan: Plan,
    change: Callable[[Reference], Reference | None],
    asked: list[Sample],
    rule: str,
) -> None:
    dataset = Dataset(samples=asked, files=(), total=len(asked))
    assert choose_rule(plan, build_task(Spec(name="gsm8k")), dataset, change(taken)).name == rule


def test_a_value_that_is_no_mean_is_judged_by_the_value(taken: Reference) -> None:
    task = replace(build_task(Spec(name="gsm8k")), aggregation=MAXIMUM)
    dataset = Dataset(samples=SAMPLES, files=(), total=len(SAMPLES))
    assert choose_rule(PLAN, task, dataset, taken).name == "classic"
