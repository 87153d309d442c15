"""Test if one endpoint of a comparison disagrees with itself more than the other does.

Unlike servers behind one address show this: a prompt that they answer differently gets one answer
or the other by chance. The verdict sees only the mean of both, and A and B need not differ more
than the unsteady one differs from itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_eval.evaluation.agreement import answer_pairs
from serve_eval.evaluation.agreement.answer_pairs import TaskAnswers, another_answer
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Report
from serve_eval.shell_words import quote_path
from serve_eval.stats.mcnemar import mcnemar

UNSTEADY_ALPHA = 0.01
"""Chance of the warning in a comparison of two endpoints that are equally steady, whichever of them
it would name and however many tasks there are."""


@dataclass(frozen=True, slots=True)
class Second:
    """The second answers of a side to a task: a run of a folder, counted from 0."""

    answers: TaskAnswers
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFolder:
    """The run folder of one side, and the facts that explain unsteady answers.

    `sessions` is the number of sessions that asked. `draws`: the temperature is above 0 or the
    server's. `one_server`: we started it alone.
    """

    folder: Path
    sessions: int = 1
    draws: bool = False
    one_server: bool = False


TwoSides = tuple[TaskAnswers, TaskAnswers]


def read_twice(sides: TwoSides, second: Mapping[str, tuple[Path, Report]]) -> Mapping[str, Second]:
    """Return the second answers of A and of B to a task: of their own folder, or the first repeat.

    A side that was asked once is left out. Raises RunFolderError for a damaged folder.
    """
    found = {}
    task = sides[0].task.result.task
    for name, once in zip("AB", sides, strict=True):
        if name in second and _has_task(second[name][1], task):
            found[name] = Second(answer_pairs.read_task(*second[name], task))
        elif len(once.lines) > 1:
            found[name] = Second(once, 1)
    return found


def _has_task(report: Report, task: str) -> bool:
    return any(one.result.task == task for one in report.tasks)


def describe_unsteady(
    tasks: Iterable[tuple[TwoSides, Mapping[str, Second]]], folders: Mapping[str, AskedFolder]
) -> tuple[str, ...]:
    """Return a warning if one side disagrees with itself in more prompts than the other.

    The test is McNemar's over the prompts of all tasks that both sides answered twice, exact and
    two-sided. It assumes that prompts are independent, and that a prompt with two answers at one
    side only is as likely to be one of A as one of B: the same engine, numerics and load.
    """
    counts = Counter[tuple[bool, bool]]()
    for sides, twice in tasks:
        counts += _count_disagreements(sides, twice)
    own = {"A": counts[True, True] + counts[True, False]}
    own["B"] = counts[True, True] + counts[False, True]
    p = mcnemar(counts[True, False], counts[False, True]).p_exact_two_sided
    if p > UNSTEADY_ALPHA:
        return ()
    worse, other = ("B", "A") if own["B"] > own["A"] else ("A", "B")
    reasons = "; ".join(_list_reasons(worse, folders[worse]))
    return (
        f"unsteady: {worse} disagrees with itself on {own[worse]} of {counts.total()} prompts,"
        f" {other} on {own[other]} (p = {p:.2g}): {reasons}",
    )


def _list_reasons(name: str, asked: AskedFolder) -> Iterator[str]:
    """Yield what may explain that a side disagrees with itself, the likeliest first."""
    if asked.sessions > 1:
        yield (
            f"answers of two servers may be mixed: {name} was asked in {asked.sessions} sessions"
        )
    if asked.draws:
        yield "above temperature 0, a flatter distribution explains it"
    if not asked.one_server:
        yield (
            "unlike servers behind one address? To ask each of them: serve-eval attribute"
            f" {quote_path(asked.folder)}, with --worker URL for each server that the address does"
            " not list"
        )
    elif not asked.draws and asked.sessions < 2:
        yield "do its answers depend on the load?"


def describe_asked(folder: Path, report: Report, sessions: int) -> AskedFolder:
    """Return how a side was asked, by its report."""
    info = report.endpoint.info
    deployed = () if info.deployment is None else info.deployment.servers
    known = max(len(info.servers or ()), len(info.workers), len(deployed))
    specs = [build_task(task.spec, f"tasks.{task.result.task}") for task in report.tasks]
    return AskedFolder(
        folder=folder,
        sessions=sessions,
        draws=any(task.sampling.temperature != 0 for task in specs),
        one_server=report.plan.launcher.name != "external" and known < 2,
    )


def _count_disagreements(
    sides: TwoSides, twice: Mapping[str, Second]
) -> Counter[tuple[bool, bool]]:
    """Count the prompts by whether A, and whether B, gave two answers.

    A prompt counts if both answered it twice.
    """
    if len(twice) < 2:
        return Counter()
    pairs = [
        (once.lines[0], twice[name].answers.lines[twice[name].run])
        for name, once in zip("AB", sides, strict=True)
    ]
    return Counter(
        (
            another_answer(pairs[0][0][prompt], pairs[0][1][prompt]),
            another_answer(pairs[1][0][prompt], pairs[1][1][prompt]),
        )
        for prompt in pairs[0][0]
        if all(prompt in lines for pair in pairs for lines in pair)
    )
