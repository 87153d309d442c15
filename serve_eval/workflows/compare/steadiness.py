"""Test if one endpoint of a comparison disagrees with itself more than the other does.

Unlike servers behind one address show this: a prompt that they answer differently gets one answer
or the other by chance. The verdict sees only the mean of both, and A and B need not differ more
than the unsteady one differs from itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from serve_eval.evidence.agreement import answer_pairs
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers, another_answer
from serve_eval.evidence.agreement.self_flips import (
    Drawn,
    find_drawn,
    repeats_show_noise,
    second_show_noise,
)
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Report
from serve_eval.shell_words import quote_path
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.storage.records.scores import ScoreRecord

UNSTEADY_ALPHA = 0.01
"""Chance of the warning in a comparison of two endpoints that are equally steady, whichever of them
it would name and however many tasks there are."""


@dataclass(frozen=True, slots=True)
class Second:
    """Further answers of a side to a task: those of a second run, or None: its repeats.

    `noise`: they are drawn as the answers of the other side are, so that they show how the side
    differs from itself in a comparison with that one. `drawn`: how the further answers are drawn.
    """

    answers: TaskAnswers | None
    noise: bool = True
    drawn: Drawn = "same"


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
    """Return the second answers of A and of B to a task: of their own folder, or their repeats.

    A side that was asked once is left out. Raises RunFolderError for a damaged folder.
    """
    found = {}
    task = sides[0].task.result.task
    for name, once, other in (("A", *sides), ("B", *sides[::-1])):
        asked = name in second and _has_task(second[name][1], task)
        if asked and (len(once.lines) < 2 or second_show_noise(once, other)):
            answers = answer_pairs.read_task(*second[name], task)
            drawn = find_drawn(once, repeats=False)
            found[name] = Second(answers, second_show_noise(once, other), drawn)
        elif len(once.lines) > 1:
            drawn = find_drawn(once, repeats=True)
            found[name] = Second(None, repeats_show_noise(once, other), drawn)
    return found


def keep_like(twice: Mapping[str, Second]) -> Mapping[str, Second]:
    """Return the second answers that show how much the sides disagree with themselves.

    Repeats with seeds of their own show nothing of it. If A and B are drawn in two ways, nothing is
    left: the side with the freer draws would be accused.
    """
    shown = {name: one for name, one in twice.items() if one.drawn != "other_seeds"}
    return shown if len({one.drawn for one in shown.values()}) < 2 else {}


def _has_task(report: Report, task: str) -> bool:
    return any(one.result.task == task for one in report.tasks)


def describe_unsteady(
    tasks: Iterable[tuple[TwoSides, Mapping[str, Second]]], folders: Mapping[str, AskedFolder]
) -> tuple[str, ...]:
    """Return a warning if one side disagrees with itself in more prompts than the other.

    The test is McNemar's over the prompts of all tasks that both sides answered twice, exact and
    two-sided: a prompt counts for the side with more pairs of answers that differ. It assumes that
    prompts are independent, and that the side with more of them is as likely to be A as B: the same
    engine, numerics and load.
    """
    counts = Counter[tuple[int, int]]()
    for sides, twice in tasks:
        counts += _count_disagreements(sides, twice)
    own = {
        name: sum(n for pairs, n in counts.items() if pairs[place])
        for place, name in enumerate("AB")
    }
    more = [sum(n for (a, b), n in counts.items() if sign * (a - b) > 0) for sign in (1, -1)]
    p = mcnemar(*more).p_exact_two_sided
    if p > UNSTEADY_ALPHA:
        return ()
    worse, other = ("B", "A") if more[1] > more[0] else ("A", "B")
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
            "unlike servers behind one address? To ask each of them: serve-eval check workers"
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


def _count_disagreements(sides: TwoSides, twice: Mapping[str, Second]) -> Counter[tuple[int, int]]:
    """Count the prompts by the pairs of answers that differ at A, and at B.

    A prompt counts if both answered it each time, and the answers of both are drawn alike. If one
    side has more repeats than the other, its last ones are left out.
    """
    twice = keep_like(twice)
    if len(twice) < 2:
        return Counter()
    runs = [list_runs(once, twice[name]) for name, once in zip("AB", sides, strict=True)]
    times = min(map(len, runs))
    of_a, of_b = (one[:times] for one in runs)
    return Counter(
        (_count_differing(of_a, prompt), _count_differing(of_b, prompt))
        for prompt in of_a[0]
        if all(prompt in lines for lines in (*of_a, *of_b))
    )


def list_runs(once: TaskAnswers, second: Second) -> Sequence[Mapping[str, ScoreRecord]]:
    """Return the runs whose answers show if a side agrees with itself."""
    return once.lines if second.answers is None else (once.lines[0], second.answers.lines[0])


def _count_differing(runs: Sequence[Mapping[str, ScoreRecord]], prompt: str) -> int:
    """Return how many pairs of answers of a side to a prompt differ."""
    pairs = combinations([run[prompt] for run in runs], 2)
    return sum(another_answer(one, other) for one, other in pairs)
