"""Compare the answers of two finished run folders prompt by prompt, or with all repeats.

With a sampling seed, the repeats of one number have the same seed on both sides.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.evidence.whole_answer import hash_answer, join_text
from serve_eval.schema import (
    Agreement,
    Failure,
    FirstDifference,
    Flip,
    LostAnswer,
    Report,
    Response,
    TaskReport,
    TextPlaces,
    find_lost,
)
from serve_eval.shell_words import quote_path
from serve_eval.stats.distances import common_prefix
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.scores import ScoreRecord, SharedValues, score_records

_REPEAT = re.compile(r"(.*)#(\d+)", re.DOTALL)
_BEFORE, _AFTER = 20, 60
"""Characters quoted before and after a first difference."""


@dataclass(frozen=True, slots=True)
class TaskAnswers:
    """A run folder's answers to one task.

    `lines` has, by repeat, the score record of each prompt; `said` has a hash of each answer. The
    others are about the first answer to each prompt: `started_s` is the time of its request in
    seconds since 1970, `latency_s` its duration in seconds, and `failed` how the first failed
    request for it failed. `doubted` has, by repeat, the prompts whose first answers are unknown,
    and `asked` those with an answer or a failure.
    """

    task: TaskReport
    folder: Path
    lines: tuple[Mapping[str, ScoreRecord], ...]
    said: tuple[Mapping[str, bytes], ...]
    started_s: Mapping[str, float]
    latency_s: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    doubted: tuple[frozenset[str], ...] = ()
    asked: tuple[frozenset[str], ...] = ()

    @property
    def planned(self) -> int:
        """Number of prompts, not counting repeats."""
        return self.task.result.planned // len(self.lines)

    def without_doubted(self) -> TaskAnswers:
        """Return the answers but for those to prompts whose first answers are unknown."""
        kept = zip(self.lines, self.said, self.doubted, strict=True)
        known = [
            ({p: line for p, line in lines.items() if p not in gone}, said, gone)
            for lines, said, gone in kept
        ]
        return replace(
            self,
            lines=tuple(lines for lines, _, _ in known),
            said=tuple(
                {p: one for p, one in said.items() if p not in gone} for _, said, gone in known
            ),
        )


def read_task(folder: Path, report: Report, name: str) -> TaskAnswers:
    """Return the scores and answers of one task.

    Raises RunFolderError for files that are missing or damaged.
    """
    task = next(task for task in report.tasks if task.result.task == name)
    repeats = report.plan.times(name)
    lines: tuple[dict[str, ScoreRecord], ...] = tuple({} for _ in range(repeats))
    said: tuple[dict[str, bytes], ...] = tuple({} for _ in range(repeats))
    started_s: dict[str, float] = {}
    latency_s: dict[str, float] = {}
    failed: dict[str, str] = {}
    doubted: tuple[set[str], ...] = tuple(set() for _ in range(repeats))
    asked: tuple[set[str], ...] = tuple(set() for _ in range(repeats))
    known = {reason.strip().lower() for reason in report.plan.limits.known_finish_reasons}
    try:
        shared = SharedValues()
        for line in score_records(folder, name):
            repeat, prompt = _place(line.id, repeats)
            lines[repeat][prompt] = shared.score(line)
        ids = {prompt: prompt for prompt in lines[0]}
        for record in journal.read(samples_file(folder, name)):
            repeat, prompt = _place(record.id, repeats)
            prompt = ids.get(prompt, prompt)
            result = record.response or record.failure
            if result is not None:
                asked[repeat].add(prompt)
            if result is not None and _is_doubted(result, known):
                doubted[repeat].add(prompt)
            if repeat == 0 and result is not None and (how := _how_first_failed(result)):
                failed.setdefault(prompt, how)
            if record.response is not None:
                if prompt in lines[repeat]:
                    said[repeat].setdefault(prompt, hash_answer(record.response))
                if repeat == 0 and record.response.attempts:
                    started_s.setdefault(prompt, record.response.attempts[0].start_s)
                    latency_s.setdefault(prompt, record.response.latency_s)
    except (OSError, IndexError) as error:
        raise RunFolderError(
            f"{folder}: the answers to {name} cannot be read: {error}",
            hint=f"Ask again what is missing: serve-eval run --resume {quote_path(folder)}",
        ) from error
    unknown = tuple(
        frozenset(prompts & line.keys()) for prompts, line in zip(doubted, lines, strict=True)
    )
    every = tuple(map(frozenset, asked))
    return TaskAnswers(task, folder, lines, said, started_s, latency_s, failed, unknown, every)


def _is_doubted(result: Response | Failure, known: Collection[str]) -> bool:
    """Return True if the first answer to a sample is unknown, or may have been cut.

    `known` are the finish reasons of whole answers that the plan lists.
    """
    if find_lost(result.attempts) is not LostAnswer.NOTHING:
        return True
    if isinstance(result, Failure) or not result.unlisted_finish:
        return False
    return (result.finish_reason or "").strip().lower() not in known


def _how_first_failed(result: Response | Failure) -> str | None:
    """Return the kind of the first failed attempt, with the HTTP status if it is an error."""
    for one in result.attempts:
        if one.failure is not None:
            at_fault = one.status is not None and one.status >= 400
            return f"{one.failure.value} {one.status}" if at_fault else one.failure.value
    return None


def _place(sample: str, repeats: int) -> tuple[int, str]:
    """Return the repeat and the prompt of an id."""
    found = _REPEAT.fullmatch(sample) if repeats > 1 else None
    return (0, sample) if found is None else (int(found[2]) - 1, found[1])


# -------------------------------------------------------------------------------------------------
# what they say


def apart_s(a: TaskAnswers, b: TaskAnswers) -> float | None:
    """Return the median seconds between the requests for the same prompt, or None if unknown."""
    gaps = [
        abs(b.started_s[prompt] - start)
        for prompt, start in a.started_s.items()
        if prompt in b.started_s
    ]
    return statistics.median(gaps) if gaps else None


def find_changes(
    a: TaskAnswers, b: TaskAnswers, *, a_run: int = 0, b_run: int = 0
) -> tuple[list[str], list[str]]:
    """Return the prompts whose score fell, and those whose score rose, from A's run to B's."""
    sign = 1.0 if a.task.result.metric.higher_is_better else -1.0
    before, after = a.lines[a_run], b.lines[b_run]
    both = [
        (prompt, sign * (after[prompt].value - line.value))
        for prompt, line in before.items()
        if prompt in after
    ]
    return [p for p, change in both if change < 0.0], [p for p, change in both if change > 0.0]


def agreement(
    a: TaskAnswers,
    b: TaskAnswers,
    *,
    a_run: int = 0,
    b_run: int = 0,
    among: Iterable[str] | None = None,
) -> Agreement:
    """Return how far the texts of two runs agree, for the prompts in `among` or for all."""
    first, second = a.lines[a_run], b.lines[b_run]
    prompts = [p for p in (first if among is None else among) if p in first and p in second]
    identical = same = 0
    for prompt in prompts:
        if a.said[a_run].get(prompt) == b.said[b_run].get(prompt):
            identical += 1
        elif not another_answer(first[prompt], second[prompt]):
            same += 1
    return Agreement(
        prompts=len(prompts),
        identical=identical,
        same_answer=same,
        different=len(prompts) - identical - same,
    )


def another_score(one: ScoreRecord, other: ScoreRecord) -> bool:
    """Return whether two answers to a prompt have different scores."""
    return one.value != other.value


def another_answer(one: ScoreRecord, other: ScoreRecord) -> bool:
    """Return whether two answers to a prompt differ, right or wrong.

    If neither has an extracted answer, their scores decide.
    """
    if one.answer is None and other.answer is None:
        return one.value != other.value
    return one.answer != other.answer


def read_flips(a: TaskAnswers, b: TaskAnswers, prompts: Sequence[str], run: int) -> list[Flip]:
    """Return these prompts with the answers of A and B in one run of both."""
    both = texts(a, prompts, run), texts(b, prompts, run)
    found = []
    for prompt in prompts:
        one, other = a.lines[run][prompt], b.lines[run][prompt]
        said = both[0].get(prompt, ""), both[1].get(prompt, "")
        found.append(
            Flip(
                id=f"{prompt}#{run + 1}" if run else prompt,
                scores=(one.value, other.value),
                answers=(one.answer, other.answer),
                target=one.target,
                texts=said,
                first_difference=first_difference(*said),
            )
        )
    return found


def texts(answers: TaskAnswers, prompts: Iterable[str], run: int = 0) -> dict[str, str]:
    """Return the answers to these prompts in one run: reasoning, text and tool calls, concatenated.

    `run` counts the repeats of a prompt from 0; -1 is the last one. Raises RunFolderError for a
    journal that is damaged or missing.
    """
    wanted, found = set(prompts), dict[str, str]()
    for prompt, response in read_responses(answers, run):
        if prompt in wanted:
            found.setdefault(prompt, join_text(response))
    return found


def read_responses(answers: TaskAnswers, run: int = 0) -> Iterator[tuple[str, Response]]:
    """Yield the prompts of one run with their answers, scored or not. Raises RunFolderError."""
    run %= len(answers.lines)
    for repeat, prompt, response in read_all_responses(answers):
        if repeat == run:
            yield prompt, response


def read_all_responses(answers: TaskAnswers) -> Iterator[tuple[int, str, Response]]:
    """Yield the run, the prompt and the answer, scored or not. Raises RunFolderError."""
    file = samples_file(answers.folder, answers.task.result.task)
    try:
        for record in journal.read(file):
            if record.response is not None:
                yield *_place(record.id, len(answers.lines)), record.response
    except OSError as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}",
            hint=f"Ask again what is missing: serve-eval run --resume {quote_path(answers.folder)}",
        ) from error


def read_failures(answers: TaskAnswers) -> dict[str, Failure]:
    """Return the failures of samples without an answer, by id. Raises RunFolderError."""
    found: dict[str, Failure] = {}
    file = samples_file(answers.folder, answers.task.result.task)
    try:
        for record in journal.read(file):
            if record.failure is not None:
                found[record.id] = record.failure
            else:
                found.pop(record.id, None)
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    return found


def first_difference(a: str, b: str) -> FirstDifference | None:
    """Return where two texts begin to differ, or None if they are equal."""
    if a == b:
        return None
    place = common_prefix(a, b)
    word = len(a[:place].split()) - (place > 0 and not a[place - 1].isspace())
    start = max(0, place - _BEFORE)
    return FirstDifference(
        character=place, word=word, a=a[start : place + _AFTER], b=b[start : place + _AFTER]
    )


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
        fell, rose = find_changes(a, b, a_run=run, b_run=other)
        worse += [name_answer(prompt, run) for prompt in fell]
        better += [name_answer(prompt, run) for prompt in rose]
    return worse, better


def agree_in_all(a: TaskAnswers, b: TaskAnswers, runs: Sequence[RunPair]) -> Agreement:
    """Return how far the texts agree over pairs of runs, counted by pairs of answers."""
    found = [agreement(a, b, a_run=one, b_run=other) for one, other in runs]
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
            for flip in read_flips(a, b, prompts, run):
                flips.setdefault(flip.id, flip)
    return [flips[name] for name in wanted]


def find_text_places(a: TaskAnswers, b: TaskAnswers) -> TextPlaces | None:
    """Return where the answers of two runs part, repeat by repeat, or None if no text differs.

    Raises RunFolderError for journals that cannot be read.
    """
    return measure_places(_list_parted(a, b))


def _list_parted(a: TaskAnswers, b: TaskAnswers) -> Iterator[tuple[str, str]]:
    """Yield the texts of the answers that differ."""
    for one, other in pair_runs(a, b):
        first, second = a.said[one], b.said[other]
        changed = [prompt for prompt, said in first.items() if second.get(prompt, said) != said]
        if changed:
            before, after = texts(a, changed, one), texts(b, changed, other)
            yield from ((before[p], after[p]) for p in changed if p in before and p in after)


def measure_places(pairs: Iterable[tuple[str, str]]) -> TextPlaces | None:
    """Summarize the first differing characters of pairs of texts; equal ones do not count. Pure."""
    found = [
        (place := common_prefix(one, other), place / max(len(one), len(other)))
        for one, other in pairs
        if one != other
    ]
    if not found:
        return None
    places, shares = zip(*found, strict=True)
    return TextPlaces(
        texts=len(places),
        at_start=places.count(0),
        median_character=float(statistics.median(places)),
        median_share=float(statistics.median(shares)),
    )
