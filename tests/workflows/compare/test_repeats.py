"""Comparisons with repeats count all answers, and take noise only from answers drawn alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evidence.answer_pairs import find_prompt, read_task
from serve_eval.launchers import embedded
from serve_eval.report.summary import rows_of
from serve_eval.schema import ComparedTask, Comparison, LaunchContext, Plan, Spec
from serve_eval.storage import run_folder
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.rows import (
    describe_agreement_of,
    describe_task,
    summarise_compared,
)
from serve_eval.workflows.diagnose.story import diagnose

RULES = CompareRules(rule=Spec(name="paired"), again=200)
N = 40
SEED = {"temperature": 0.8, "seed": 7}
FREE = {"temperature": 0.8}
Ask = Callable[..., Comparison]


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Return a function that compares the embedded model with itself or a damaged form."""

    def compared(out: Path, b: str, options: dict[str, float], repeats: int) -> Comparison:
        async def story() -> Comparison:
            context = LaunchContext(model="sound", log_dir=out.parent / "logs")
            forms = embedded.EmbeddedOptions(also={"same": "none", "int3": "int3", "int4": "int4"})
            async with embedded.launch(context, forms) as endpoint:
                task = Spec(name="word_problems", options={"num_samples": N, **options})
                plan = Plan(
                    model="sound",
                    launcher=Spec(name="external", options={"base_url": endpoint.base_url}),
                    tasks=(task,),
                    repeats=repeats,
                )
                sides = [CompareSide(plan=replace(plan, model=one)) for one in ("sound", b)]
                return await compare(*sides, RULES, out, environ={}, show_flips=200)

        return asyncio.run(story())

    return compared


@pytest.fixture(scope="module")
def seeded(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    out = tmp_path_factory.mktemp("seeded") / "out"
    return ask(out, "int4", SEED, 2), out


def _rows(task: ComparedTask) -> dict[str, str]:
    rows = (*describe_task(task), *describe_agreement_of(task), *rows_of(summarise_compared(task)))
    return dict(rows)


def test_with_equal_seeds_an_endpoint_is_asked_the_same_seeds_again(
    seeded: tuple[Comparison, Path],
) -> None:
    """Repeats 1 and 2 of A have unlike seeds: their difference is no nondeterminism of A."""
    found, out = seeded
    [task] = found.tasks
    assert task.itself is not None
    assert (task.itself.own, task.itself.own_texts, task.itself.repeats) == (0, 0, None)
    assert task.itself.other_texts
    assert task.own[0] is not None
    assert task.own[0].identical == task.own[0].prompts == N
    assert "first answers only, with their seeds" in _rows(task)["noise"]
    assert run_folder.read_plan(out / "again").repeats == 1


def test_all_answers_are_counted_and_the_rows_say_of_how_many(
    seeded: tuple[Comparison, Path],
) -> None:
    found, out = seeded
    [task] = found.tasks
    a, b = (read_task(out / one, read_report(out / one), "word_problems") for one in "ab")
    changes = [
        b.lines[run][prompt].value - line.value
        for run in (0, 1)
        for prompt, line in a.lines[run].items()
    ]
    fell, rose = sum(one < 0 for one in changes), sum(one > 0 for one in changes)
    assert a.lines[1].keys() == a.lines[0].keys()
    assert (task.worse, task.better) == (fell, rose)
    assert task.verdict.paired is not None
    assert (task.verdict.paired.down, task.verdict.paired.up) == (fell, rose)
    rows = _rows(task)
    change = next(rows[name] for name in ("drop", "change", "rise") if name in rows)
    assert f"{fell} turned wrong, {rose} turned right of {2 * N} pairs of answers" in change
    same = sum(
        a.said[run][prompt] == b.said[run][prompt] for run in (0, 1) for prompt in a.lines[run]
    )
    assert rows["texts"].startswith(f"{same} of {2 * N} pairs of answers identical")
    assert {flip.id.partition("#")[2] for flip in task.flips} == {"", "2"}
    for flip in task.flips:
        run = 1 if "#" in flip.id else 0
        prompt = find_prompt(a, flip.id)
        assert flip.scores == (a.lines[run][prompt].value, b.lines[run][prompt].value)
        assert flip.divergence is not None


def test_finished_runs_with_equal_seeds_show_no_noise(
    seeded: tuple[Comparison, Path], tmp_path: Path
) -> None:
    _, out = seeded
    sides = [CompareSide(plan=run_folder.read_plan(out / one), folder=out / one) for one in "ab"]
    found = asyncio.run(compare(*sides, RULES, tmp_path / "out", environ={}))
    [task] = found.tasks
    assert (task.itself, task.own) == (None, (None, None))
    assert "; not measured: " in _rows(task)["differs"]
    assert "noise" not in _rows(task)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    """Compare a finished run with seeds and four repeats with the same server, asked now."""
    folder = tmp_path_factory.mktemp("finished")

    async def story() -> Comparison:
        context = LaunchContext(model="sound", log_dir=folder / "logs")
        async with embedded.launch(context, embedded.EmbeddedOptions()) as endpoint:
            plan = Plan(
                model="sound",
                launcher=Spec(name="external", options={"base_url": endpoint.base_url}),
                tasks=(Spec(name="word_problems", options={"num_samples": N, **SEED}),),
                repeats=4,
                no_reference=True,
            )
            await evaluate(plan, folder / "a", environ={})
            sides = CompareSide(plan=plan, folder=folder / "a"), CompareSide(plan=plan)
            return await compare(*sides, RULES, folder / "out", environ={})

    return asyncio.run(story()), folder


def test_repeats_with_seeds_of_their_own_are_no_disagreement(
    finished: tuple[Comparison, Path],
) -> None:
    """B is asked again with equal seeds, A was not: nothing is known of A's steadiness."""
    found, folder = finished
    [task] = found.tasks
    assert task.itself is not None
    assert (task.itself.endpoint, task.itself.own_texts) == ("B", 0)
    once = read_task(folder / "a", read_report(folder / "a"), "word_problems")
    differing = sum(len({run[prompt].answer for run in once.lines}) > 1 for prompt in once.lines[0])
    assert differing >= 8, "enough for the warning, if unlike seeds counted"
    assert [line for line in found.warnings if line.startswith("unsteady: ")] == []
    assert task.own[0] is None
    assert not any(one.rule == "self_differences" for one in diagnose(folder / "out").between)


@pytest.mark.parametrize(("b", "more"), [("same", False), ("int3", True)])
def test_without_seeds_all_repeats_show_the_noise(
    ask: Ask, tmp_path: Path, b: str, more: bool
) -> None:
    [task] = ask(tmp_path / "out", b, FREE, 3).tasks
    assert task.itself is not None
    assert (task.itself.repeats, task.itself.prompts) == ((3, 3), N)
    assert (task.itself.own_pairs, task.itself.other_pairs) == (3 * N, 9 * N)
    assert task.itself.more is more
    assert any(line.startswith("more_flips: ") for line in task.warnings) is more
    said = f"{N} prompts, 3 answers of A and 3 of B to each: two of A differ in"
    assert _rows(task)["noise"].startswith(said)
    assert not (tmp_path / "out" / "again").exists()
    _check_even_loss(tmp_path / "out", named=more)


def _check_even_loss(out: Path, *, named: bool) -> None:
    """Check that a loss of B without a place is named, with the counts of all answers."""
    a, b = (read_task(out / side, read_report(out / side), "word_problems") for side in "ab")
    changes = [
        b.lines[run][prompt].value - line.value
        for run in range(len(a.lines))
        for prompt, line in a.lines[run].items()
    ]
    fell, rose = sum(one < 0 for one in changes), sum(one > 0 for one in changes)
    told = [one.told for one in diagnose(out).between if one.rule == "even_loss"]
    assert len(told) == named
    for line in told:
        assert line.startswith(
            f"B has {fell} answers wrong that A has right, and {rose} the other way round of"
            f" {len(changes)} pairs; "
        )
