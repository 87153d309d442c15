"""A loss that another finding explains is neither placed in a slice nor blamed on weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.schema import Plan, Spec
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.causes import find_leads
from serve_eval.workflows.diagnose.finding import WEIGHTS
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.story import diagnose
from serve_eval.workflows.references.register import register
from tests.cli.command import serve_eval
from tests.workflows.diagnose.server import Asked, Said, Server, answers_to, plan_for, run, sound
from tests.workflows.diagnose.shown import list_lines

MAX_TOKENS = 512


def is_hit(asked: Asked) -> bool:
    """Return True for the samples of two steps."""
    return asked.target.count("\n") == 2


def cut(asked: Asked) -> Said:
    if not is_hit(asked):
        return sound(asked)
    return Said(text="First,", finish="length", tokens=MAX_TOKENS)


def refuse(asked: Asked) -> Said:
    return Said(text="out of memory", status=400) if is_hit(asked) else sound(asked)


def cut_or_refuse(asked: Asked) -> Said:
    return refuse(asked) if asked.chance("half") < 0.5 else cut(asked)


def leave_empty(asked: Asked) -> Said:
    return Said(text="") if is_hit(asked) else sound(asked)


def lose(asked: Asked) -> Said:
    return Said(text="0") if is_hit(asked) else sound(asked)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """Return a plan whose reference is the run of a sound endpoint, and that run."""
    folder = tmp_path_factory.mktemp("judged")
    plan = replace(plan_for(folder, num_samples=250), no_reference=True, references_dir=None)
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), folder / "a")
    register([folder / "a"], folder / "own")
    return replace(plan, no_reference=False, references_dir=str(folder / "own")), folder / "a"


FAULTS = {
    "cut": (cut, ("m",), "truncated"),
    "refuse": (refuse, ("m",), "refused"),
    "cut_or_refuse": (cut_or_refuse, ("m",), "refused"),
    "leave_empty": (leave_empty, ("m",), "empty"),
    "other_model": (lose, ("n",), "other_model"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_names_the_fault_alone(name: str, judged: tuple[Plan, Path], tmp_path: Path) -> None:
    act, models, rule = FAULTS[name]
    plan, _ = judged
    answers = answers_to(plan.tasks[0])
    run(plan, Server(act=act, answers=answers, models=models), tmp_path / "b")
    [found] = diagnose(tmp_path / "b").runs
    rules = [one.rule for one in found.findings]
    assert rule in rules
    assert "slice" not in rules
    assert WEIGHTS not in " ".join(one.told for one in found.findings)


def test_a_comparison_names_the_cut_answers_alone(
    judged: tuple[Plan, Path], tmp_path: Path
) -> None:
    plan, a = judged
    plan = replace(plan, no_reference=True, references_dir=None)
    run(plan, Server(act=cut, answers=answers_to(plan.tasks[0])), tmp_path / "b")
    sides = [CompareSide(plan=plan, folder=folder) for folder in (a, tmp_path / "b")]
    rules = CompareRules(rule=Spec(name="paired"), again=0)
    asyncio.run(compare(*sides, rules, tmp_path / "c", environ={}, show_flips=0))
    leads = find_leads(read_folder(tmp_path / "c"))
    assert leads.places == ()
    assert leads.causes["word_problems"].startswith("B cuts ")
    assert WEIGHTS not in "\n".join(list_lines(tmp_path / "c"))


def test_a_slice_that_nothing_explains_is_named(judged: tuple[Plan, Path], tmp_path: Path) -> None:
    plan, _ = judged
    run(plan, Server(act=lose, answers=answers_to(plan.tasks[0])), tmp_path / "b")
    assert "slice" in [one.rule for one in diagnose(tmp_path / "b").runs[0].findings]


def test_the_block_and_the_line_name_the_same_cause(tmp_path: Path) -> None:
    """The embedded model needs more than 20 tokens for most problems."""
    cutting = ("--set", "word_problems.max_tokens=20", "--allow-mismatch", "max_tokens")
    done = serve_eval(
        *("run", "-t", "word_problems", "--limit", "100", "--launcher", "embedded", *cutting),
        *("-o", tmp_path / "run", "--notify-text", tmp_path / "line"),
    )
    assert done.returncode == 1, done.stderr
    cause = (tmp_path / "line").read_text().partition("likely: ")[2].rpartition("; ")[0]
    assert "wrong answers end at exactly max_tokens=20" in cause
    block = " ".join(done.stdout.split())
    assert f"likely {cause}" in block
    assert "one slice" not in block
    assert WEIGHTS not in block
