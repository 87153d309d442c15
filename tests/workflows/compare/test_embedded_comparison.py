"""Comparisons of a real model with its rounded forms.

The slow test repeats the table in docs/regression-checks.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serve_eval.evidence.agreement.self_flips import FLIP_ALPHA
from serve_eval.launchers import embedded
from serve_eval.launchers._embedded.damage import Damage
from serve_eval.schema import ComparedTask, LaunchContext, Plan, Spec
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare

SOUND = "embedded"


def _compared(
    damages: tuple[Damage, ...],
    folder: Path,
    *,
    problems: int,
    again: int,
    rule: Spec,
    seed: int = 0,
) -> dict[str, tuple[ComparedTask, int]]:
    """Return the comparison with each form and its exit code."""
    found: dict[str, tuple[ComparedTask, int]] = {}

    async def story() -> None:
        context = LaunchContext(model=SOUND, log_dir=folder / "logs")
        async with embedded.launch(
            context, embedded.EmbeddedOptions(also={one: one for one in damages})
        ) as endpoint:
            running = Spec(name="external", options={"base_url": endpoint.base_url})
            task = Spec(
                name="word_problems", options={"num_samples": problems, "random_seed": seed}
            )
            for damage in damages:
                a, b = (
                    CompareSide(plan=Plan(model=one, launcher=running, tasks=(task,)))
                    for one in (SOUND, damage)
                )
                done = await compare(
                    a,
                    b,
                    CompareRules(rule=rule, again=again),
                    folder / damage,
                    show_flips=12,
                    environ={},
                )
                found[damage] = done.tasks[0], done.exit_code

    asyncio.run(story())
    return found


def test_int8_is_no_drop_and_int3_is_one(tmp_path: Path) -> None:
    found = _compared(("int8", "int3"), tmp_path, problems=60, again=20, rule=Spec(name="paired"))
    (int8, passed), (int3, failed) = found["int8"], found["int3"]
    assert (passed, failed) == (PASS, FAIL)
    for task in (int8, int3):
        assert task.itself is not None
        assert (task.itself.prompts, task.itself.own) == (20, 0)
    assert int8.worse + int8.better <= 3
    assert int3.worse > 5 * int3.better
    assert any(warning.startswith("more_flips: ") for warning in int3.warnings)
    assert not any(warning.startswith("more_flips: ") for warning in int8.warnings)
    looked = [flip.divergence for flip in int3.flips]
    assert len(looked) == 12
    assert {one.kind for one in looked if one is not None} <= {"near tie", "confident"}
    assert int3.places is not None
    assert int3.places.reading == "", "wrong weights differ at any token"


def test_texts_tell_int4_apart_where_too_few_scores_change(tmp_path: Path) -> None:
    int4, _ = _compared(
        ("int4",), tmp_path, problems=60, again=60, rule=Spec(name="paired"), seed=4
    )["int4"]
    told = int4.itself
    assert told is not None
    assert told.other_texts is not None
    assert (told.prompts, told.own, told.own_texts) == (60, 0, 0)
    assert mcnemar(told.only_other, told.only_own).p_mid > FLIP_ALPHA
    assert told.other_texts > told.other
    assert (told.more, told.measure) == (True, "text")
    [said] = [warning for warning in int4.warnings if warning.startswith("more_flips: ")]
    assert (
        f"B's texts differ from A's first texts in {told.other_texts} of 60 prompts, A's own second"
        " texts in 0" in said
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paired", "noninferiority"])
def test_the_whole_task_tells_int8_from_int3(name: str, tmp_path: Path) -> None:
    found = _compared(("int8", "int3"), tmp_path, problems=500, again=200, rule=Spec(name=name))
    assert {damage: code for damage, (_, code) in found.items()} == {"int8": PASS, "int3": FAIL}


@pytest.mark.slow
def test_four_bits_take_more_problems(tmp_path: Path) -> None:
    found = _compared(
        ("int4", "int4-g32"), tmp_path, problems=2000, again=200, rule=Spec(name="paired")
    )
    for damage, (task, code) in found.items():
        assert code == FAIL, damage
        assert any(warning.startswith("more_flips: ") for warning in task.warnings), damage
