"""Compare all answers of two runs: each repeat of A with the same repeat of B.

With a sampling seed, the repeats of one number have the same seed on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from serve_eval.evidence.agreement import answer_pairs
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.schema import Agreement, Flip

RunPair = tuple[int, int]
"""A run of A and a run of B, counted from 0."""


def name_answer(prompt: str, run: int) -> str:
    """Return the id of an answer: that of its prompt, with the number of a repeat after the first.

    A run folder names its answers alike.
    """
    return f"{prompt}#{run + 1}" if run else prompt


def find_prompt(answers: TaskAnswers, name: str) -> str:
    """Return the prompt of an answer of this name."""
    prompt, _, number = name.rpartition("#")
    several = len(answers.lines) > 1 and name not in answers.lines[0]
    return prompt if several and number.isdigit() else name


def pair_runs(a: TaskAnswers, b: TaskAnswers) -> list[RunPair]:
    """Return the repeats of both sides that are compared; further ones of one side have no pair."""
    return [(run, run) for run in range(min(len(a.lines), len(b.lines)))]


def pair_own(answers: TaskAnswers) -> list[RunPair]:
    """Return all pairs of two repeats of one side."""
    runs = range(len(answers.lines))
    return [(one, other) for one in runs for other in runs if one < other]


def find_all_changes(a: TaskAnswers, b: TaskAnswers) -> tuple[list[str], list[str]]:
    """Return the answers whose score fell, and those whose score rose, from A to B."""
    worse: list[str] = []
    better: list[str] = []
    for run, other in pair_runs(a, b):
        fell, rose = answer_pairs.find_changes(a, b, a_run=run, b_run=other)
        worse += [name_answer(prompt, run) for prompt in fell]
        better += [name_answer(prompt, run) for prompt in rose]
    return worse, better


def agree_in_all(a: TaskAnswers, b: TaskAnswers, runs: Sequence[RunPair]) -> Agreement:
    """Return how far the texts agree over pairs of runs, counted by pairs of answers."""
    found = [answer_pairs.agreement(a, b, a_run=one, b_run=other) for one, other in runs]
    if len(found) == 1:
        return found[0]
    asked = {prompt for one, other in runs for prompt in a.lines[one] if prompt in b.lines[other]}
    return Agreement(
        prompts=len(asked),
        pairs=sum(one.prompts for one in found),
        identical=sum(one.identical for one in found),
        same_answer=sum(one.same_answer for one in found),
        different=sum(one.different for one in found),
    )


def list_flips(a: TaskAnswers, b: TaskAnswers, names: Iterable[str]) -> list[Flip]:
    """Return the answers of these names, as `find_all_changes` returns them, of A and B."""
    wanted = list(names)
    flips: dict[str, Flip] = {}
    for run, _ in pair_runs(a, b):
        known = {name_answer(prompt, run): prompt for prompt in a.lines[run]}
        prompts = [known[name] for name in wanted if name in known]
        if prompts:
            for flip in answer_pairs.flips(a, b, prompts, run):
                flips.setdefault(flip.id, flip)
    return [flips[name] for name in wanted]
