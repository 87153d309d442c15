"""Test every task on the whole path: gold answers have full marks, and wrong ones have none.

Prompts, HTTP, extraction, programs and scoring are real; the data is ours. A new file in
serve_eval/tasks is covered automatically.
"""

import asyncio
import math

import pytest

from serve_eval.errors import SandboxError
from serve_eval.schema import Plan, Spec
from serve_eval.workflows.gold import GoldCheck, check_gold, use_server
from tests.tasks.made_data import NAMES, spec_of

pytestmark = pytest.mark.usefixtures("simulated_here")
LIMIT, PROGRAMS_LIMIT = 12, 6
"""Samples of each task, and of those that run answers."""
PROGRAMS = ["livecodebench"]
"""Tasks that run answers by default."""
LIKELIHOOD = {"scoring": "loglikelihood"}
PERPLEXITY = (math.exp(0.5), math.exp(3.0))
"""Values of an expected and of an unexpected text, with 0.5 and 3 nats per token."""
OTHER_VALUES = {
    "perplexity": PERPLEXITY,
    "word_problems_perplexity": PERPLEXITY,
    "voxpopuli": (0.0, 100.0),
}
WAYS = {
    "defaults": [name for name in NAMES if name not in PROGRAMS],
    "likelihood": [Spec(name=name, options=LIKELIHOOD) for name in ("mmlu", "word_problems")],
    "programs": [*PROGRAMS, Spec(name="humaneval", options={"metric": "pass@1"})],
}


def _check(tasks, root, limit):
    specs = tuple(one if isinstance(one, Spec) else spec_of(one, root) for one in tasks)
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={}),
        tasks=specs,
        dataset_roots=(str(root),),
        limit=limit,
        allow_code_execution=True,
    )
    return asyncio.run(check_gold(use_server(plan), {}))


@pytest.mark.parametrize("way", WAYS)
def test_gold_answers_score_full_marks_and_wrong_ones_nothing(way, data_root):
    try:
        limit = PROGRAMS_LIMIT if way == "programs" else LIMIT
        found = _check(WAYS[way], data_root, limit)
    except SandboxError as error:
        pytest.skip(str(error))
    assert len(found) == len(WAYS[way])
    for one in found:
        assert one.errors == (), one
        assert one.rows == (), f"{one.task}: {len(one.rows)} rows, the first {one.rows[:3]}"
        assert one.samples > 0, f"{one.task}: no sample was checked"
        assert one.values == pytest.approx(OTHER_VALUES.get(one.task, (100.0, 0.0))), one


@pytest.mark.parametrize(
    ("gold", "zero", "no_gold", "passed"),
    [
        (20, 20, "", True),
        (19, 20, "", False),
        (20, 19, "", False),
        (18, 20, "it has none", True),
        (17, 20, "it has none", False),
        (20, 19, "it has none", False),
    ],
)
def test_of_made_up_answers_some_may_be_wrong(gold, zero, no_gold, passed):
    found = GoldCheck(
        task="t",
        samples=20,
        gold=gold,
        zero=zero,
        shared=0,
        rows=(),
        no_gold=no_gold,
        relative=False,
    )
    assert found.passed is passed
