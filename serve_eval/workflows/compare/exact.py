"""Compare answers token by token: between two sides, or of one endpoint with itself.

Deployments with batch-invariant kernels, or that move KV caches between servers, promise the same
tokens. Run folders hold texts and numbers of generated tokens, so these are compared.

Unlike servers behind one address show this: a prompt that they answer differently gets one answer
or the other by chance. The verdict sees only the mean of both, and A and B need not differ more
than the unsteady one differs from itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from serve_eval.evidence import answer_pairs
from serve_eval.evidence.answer_pairs import TaskAnswers, another_answer
from serve_eval.evidence.answer_texts import find_first_divergences, part
from serve_eval.evidence.self_flips import Drawn, find_drawn, repeats_show_noise, second_show_noise
from serve_eval.evidence.whole_answer import join_text
from serve_eval.frozen import freeze, freeze_places
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Parting, Report, TokenEquality, Verdict, VerdictOutcome
from serve_eval.shell_words import quote_path
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage.scores import ScoreRecord

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


class SpokenAnswer(NamedTuple):
    """The text of an answer and the number of its tokens (0: not reported)."""

    text: str
    tokens: int


Spoken = Mapping[str, SpokenAnswer]


class ExactAnswers(NamedTuple):
    """The equality of the answers of two sides, and the pairs that the verdict rule judges.

    `known` are the pairs of the prompts whose first answers are known on both sides.
    """

    equality: TokenEquality
    pairs: Pairs | None
    known: Pairs | None


def compare_tokens(
    a: TaskAnswers,
    b: TaskAnswers,
    twice: Mapping[str, Second],
    *,
    placed: Mapping[str, int],
    hidden: frozenset[str],
    show: int,
) -> ExactAnswers | None:
    """Compare all answers; return None if the task asks for none, but for probabilities.

    `placed` has the tokens at which examined prompts part. At most `show` partings are kept, none
    of the `hidden` prompts. Raises RunFolderError for journals that cannot be read.
    """
    runs = [(_read(a, run), _read(b, run)) for run in range(min(len(a.lines), len(b.lines)))]
    if not any(one.text or one.tokens > 1 for run in runs for side in run for one in side.values()):
        return None
    planned = max(a.planned, b.planned) * len(runs)
    doubted = [
        {prompt for side in (a, b) for prompt in (side.doubted[run] if side.doubted else ())}
        for run in range(len(runs))
    ]
    sure = [
        prompt not in doubted[number]
        for number, (first, second) in enumerate(runs)
        for prompt in first
        if prompt in second
    ]
    both = [
        (f"{prompt}#{number + 1}" if number else prompt, one, second[prompt])
        for number, (first, second) in enumerate(runs)
        for prompt, one in first.items()
        if prompt in second
    ]
    counts = _compare_counts([(one, other) for _, one, other in both])
    changed = [(name, one.text, other.text) for name, one, other in both if one.text != other.text]
    recounted = [
        counts == "compared" and one.text == other.text and one.tokens != other.tokens
        for _, one, other in both
    ]
    partings = _part(changed, placed)
    placed_ones = [one for one in partings.values() if one.token is not None]
    equality = TokenEquality(
        answers=len(both),
        missing=max(0, planned - len(both)),
        different=len(changed),
        other_counts=sum(recounted),
        counts=counts,
        own=(_own(a, runs[0][0], twice.get("A")), _own(b, runs[0][1], twice.get("B"))),
        partings=dict([(n, one) for n, one in partings.items() if n not in hidden][:show]),
        places=find_first_divergences(placed_ones or [*partings.values()]),
    )
    equal = [
        one.text == other.text and not again
        for (_, one, other), again in zip(both, recounted, strict=True)
    ]
    known = [same for same, certain in zip(equal, sure, strict=True) if certain]
    return ExactAnswers(
        equality, _pair(equal, equality.missing), _pair(known, planned - len(known))
    )


def _read(answers: TaskAnswers, run: int) -> Spoken:
    return {
        prompt: SpokenAnswer(join_text(response), response.usage.shown_tokens)
        for prompt, response in answer_pairs.read_responses(answers, run)
    }


def _compare_counts(
    pairs: Sequence[tuple[SpokenAnswer, SpokenAnswer]],
) -> Literal["compared", "none", "otherwise"]:
    """Return if the numbers of tokens of both sides can be compared.

    Two servers that count the end of an answer, or thoughts, otherwise do so in nearly all answers.
    """
    equal = [(one.tokens, other.tokens) for one, other in pairs if one.text == other.text]
    if not any(one for one, _ in equal) or not any(other for _, other in equal):
        return "none"
    apart = sum(one != other for one, other in equal)
    return "otherwise" if 2 * apart > len(equal) else "compared"


def _part(changed: Sequence[tuple[str, str, str]], placed: Mapping[str, int]) -> dict[str, Parting]:
    """Return the partings by prompt, those with a known token first."""
    found = {name: part(one, other) for name, one, other in changed}
    return {
        name: replace(one, token=placed.get(name))
        for name, one in sorted(
            found.items(), key=lambda one: (one[0] not in placed, len(one[0]), one[0])
        )
        if one is not None
    }


def _own(once: TaskAnswers, first: Spoken, second: Second | None) -> tuple[int, int] | None:
    """Count the prompts to which a side gave another text when asked again, and those asked."""
    if second is None or not second.noise or second.drawn == "other_seeds":
        return None
    repeats = range(1, len(once.lines))
    again = (
        [_read(once, run) for run in repeats]
        if second.answers is None
        else [_read(second.answers, 0)]
    )
    asked = [prompt for prompt in first if any(prompt in one for one in again)]
    other = [p for p in asked if any(p in one and one[p].text != first[p].text for one in again)]
    return len(other), len(asked)


def _pair(equal: Sequence[bool], missing: int) -> Pairs | None:
    from serve_eval.stats.pairs import pair

    if not equal:
        return None
    lacking = [math.nan] * missing
    ones = [1.0] * len(equal)
    return pair(
        [[*ones, *lacking]], [[*map(float, equal), *lacking]], lo=0.0, hi=1.0, higher_is_better=True
    )


def add_own(verdict: Verdict, equality: TokenEquality) -> Verdict:
    """Return the verdict with what the second answers of each side say.

    A B that differs from itself breaks the promise even if its first answers equal A's.
    """
    reasons, warnings = list(verdict.reasons), list(verdict.warnings)
    (of_a, of_b), outcome = equality.own, verdict.outcome
    if of_b is not None and of_b[0]:
        reasons.append(
            f"own_differences: B gives another text to {of_b[0]} of {of_b[1]} prompts when asked"
            " again"
        )
        outcome = VerdictOutcome.FAIL
    if of_a is not None and of_a[0]:
        warnings.append(
            f"A gives another text to {of_a[0]} of {of_a[1]} prompts when asked again: no B can"
            " equal it"
        )
    return replace(verdict, outcome=outcome, reasons=tuple(reasons), warnings=tuple(warnings))


UNSTEADY_ALPHA = 0.01
"""Chance of the warning in a comparison of two endpoints that are equally steady, whichever of them
it would name and however many tasks there are."""


@freeze_places
class Second:
    """Further answers of a side to a task: those of a second run, or None: its repeats.

    `noise`: they are drawn as the answers of the other side are, so that they show how the side
    differs from itself in a comparison with that one. `drawn`: how the further answers are drawn.
    """

    answers: TaskAnswers | None
    noise: bool = True
    drawn: Drawn = "same"


@freeze
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
        asked = name in second and any(one.result.task == task for one in second[name][1].tasks)
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
