"""Score an answer, or report why it cannot be scored.

A scorer that raises or never ends costs only that answer its score. Tasks that are not known to be
quick are scored in other processes (serve_eval.processes.bounded_call), where each task is built
again from its name and options. There, `limits.scorer_timeout_s` bounds the time, and the event
loop never waits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from serve_eval.errors import ExternalCodeError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.plugins import extensions, registry
from serve_eval.plugins._wanted import SLACK, check_score
from serve_eval.processes.bounded_call import Apart, Unfinished
from serve_eval.processes.forkserver import describe_error, escape
from serve_eval.protocol.shared import TASKS, bare_task
from serve_eval.schema import (
    HOLDOUT,
    DataRoots,
    Metric,
    Outcome,
    Response,
    Sample,
    Score,
    ScorerError,
    Spec,
    Task,
    UnscoredSample,
    name_empty,
)

T = TypeVar("T")
Grade = tuple[Score, str | None]
"""A score with the way in which the answer failed (None: it did not, or the task does not say)."""
_REPEAT = re.compile(r"#\d+$")


def score_response(task: Task, sample: Sample, response: Response) -> Score:
    """Return the score of an answer.

    Without text or tool call, most scorers have nothing to read, and the outcome says why. Where
    lower is better, no score is known beforehand to be the worst, so that the scorer is asked.
    """
    text = response.text
    if (
        (text and not text.isspace())
        or response.tool_calls
        or response.prompt_logprobs is not None
        or response.choice_logprobs is not None
    ):
        return task.score(sample, response)
    outcome = name_empty(response)
    if task.judges_empty or not task.metric.higher_is_better or response.exchanges:
        score = task.score(sample, response)
        nothing = score.outcome in (Outcome.WRONG, Outcome.UNPARSED)
        return msgspec.structs.replace(score, outcome=outcome) if nothing else score
    return Score(value=task.metric.lo or 0.0, outcome=outcome)


def grade(task: Task, sample: Sample, response: Response) -> Grade:
    """Return the score of an answer and the way in which it failed.

    Raises any error of the scorer, and ServeEvalError for an invalid score.
    """
    score, metric = score_response(task, sample, response), task.metric
    if not (
        type(score) is Score
        and type(score.value) is float
        and type(score.outcome) is Outcome
        and (score.answer is None or type(score.answer) is str)
        and isinstance(score.parts, dict)
        and _are_sound(score.parts)
        and _is_within(score.value, metric)
    ):
        score = check_score(score, "score()", metric.lo, metric.hi)
    if task.failure_mode is None or score.outcome is Outcome.CORRECT:
        return score, None
    try:
        said = task.failure_mode(sample, response, score)
        mode = None if said is None else escape(str(said))
    except KeyboardInterrupt:
        raise
    except ExternalCodeError as error:
        mode = f"unknown: {error}"
    except BaseException as error:
        mode = f"unknown: failure_mode raised {type(error).__name__}"
    return score, mode


def try_grading(task: Task, sample: Sample, response: Response) -> Grade | Unfinished:
    """Return the grade of an answer, or the error of the scorer."""
    try:
        return grade(task, sample, response)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including SystemExit: a scorer must not end a run
        return Unfinished(**describe_error(error))


async def grade_answer(
    task: Task, sample: Sample, response: Response, apart: ScoredApart | None
) -> Grade | Unfinished:
    """Return the grade of an answer, computed in another process if the task has one."""
    if apart is None:
        return try_grading(task, sample, response)
    return await asyncio.wrap_future(apart(sample, response))


def _are_sound(parts: dict[str, float]) -> bool:
    """Return True if all names are texts that can be written, and all values finite numbers."""
    for name, part in parts.items():
        # Half of a surrogate pair, which cannot be written, is not printable.
        if type(name) is not str or type(part) is not float or not name.isprintable():
            return False
        if part - part != 0.0:
            return False
    return True


def _is_within(value: float, metric: Metric) -> bool:
    """Return True if a value is in the metric's range, where NaN and the infinities never are."""
    lo, hi = metric.lo, metric.hi
    return (
        (lo is None or lo - SLACK <= value)
        and (hi is None or value <= hi + SLACK)
        and value - value == 0.0
    )


# --- scoring in other processes


@freeze
class Recipe:
    """The instructions to build a task again in another process.

    `wanted` is the number of samples for `load`. `code` has the checksums of the third-party code
    that this process runs. `places` are the folders that are searched for tasks and scorers.
    """

    spec: Spec
    include_path: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]
    roots: DataRoots
    wanted: int
    code: Mapping[str, str]


def recipe_for(spec: Spec, *, roots: DataRoots, wanted: int) -> Recipe:
    """Return the recipe with which another process builds the same task."""
    return Recipe(
        spec=spec,
        include_path=extensions.list_included(),
        places=registry.places((TASKS, registry.SCORERS)),
        roots=roots,
        wanted=wanted,
        code={name: one.sha256 for name, one in extensions.list_loaded().items()},
    )


ScoredApart = Callable[[Sample, Response], "Future[Grade | Unfinished]"]


class ScoringProcesses:
    """Score answers of tasks, by task name, in other processes.

    The processes start with the first answer.
    """

    def __init__(self, recipes: Mapping[str, Recipe], *, limit_s: float) -> None:
        makers = {name: (rebuilt, (recipe,)) for name, recipe in recipes.items()}
        self._apart = Apart(makers, limit_s=limit_s) if makers else None

    def of(self, name: str) -> ScoredApart | None:
        """Return the scoring function of a task, or None if the task is scored here."""
        apart = self._apart
        if apart is None or name not in apart.names:
            return None
        return lambda sample, response: apart.submit(name, sample, response)

    async def wait_for(self, scores: Callable[..., T], *args: Any) -> T:
        """Return the result of `scores`, a function that waits for these processes.

        Runs it in a thread, so that signals are handled meanwhile. A cancellation ends the
        processes and thereby the wait. Without processes, it is called directly.
        """
        if self._apart is None:
            return scores(*args)
        thread = asyncio.ensure_future(asyncio.to_thread(scores, *args))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self.close()
            await asyncio.wait([thread])
            raise

    def close(self) -> None:
        """End the processes."""
        if self._apart is not None:
            self._apart.close()

    def __enter__(self) -> ScoringProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rebuilt(recipe: Recipe) -> Callable[[Sample, Response], Grade]:
    """Return the scoring function of a task that is built again in this process.

    Raises ServeEvalError if the function would differ.
    """
    extensions.include(recipe.include_path)
    registry.look_in(recipe.places)
    task = bare_task(recipe.spec)
    now = extensions.list_loaded()
    changed = [
        name for name, sha256 in recipe.code.items() if name in now and now[name].sha256 != sha256
    ]
    if changed:
        raise ServeEvalError(
            f"{', '.join(changed)}: the file has changed since the command started",
            hint="Run the command again. It scores all answers with the current file.",
        )
    own: dict[str, Sample] = {}
    if task.scoring == "loaded":
        own = {sample.id: sample for sample in task.load(recipe.roots, recipe.wanted).samples}

    def score(sample: Sample, response: Response) -> Grade:
        mine = own.get(sample.id) or own.get(_REPEAT.sub("", sample.id))
        if mine is not None and (mine.target != sample.target or mine.metadata != sample.metadata):
            raise ServeEvalError(
                f"the task's load returns sample {sample.id} with another target or other metadata"
                " each time",
                hint="Change load so that every call returns the same samples.",
            )
        return grade(task, sample, response)

    return score


def why_not_rebuilt(recipe: Recipe, *, limit_s: float) -> Unfinished | None:
    """Return why a task cannot be built and loaded in another process, or None if it can."""
    with Apart({"task": (_build, (recipe,))}, limit_s=limit_s, at_once=1) as apart:
        problem: Unfinished | None = apart.call("task")
        return problem


def _build(recipe: Recipe) -> Callable[[], None]:
    rebuilt(recipe)
    return lambda: None


MOST_ERRORS = 20
"""Number of different messages of a task's scorer that are kept."""
MOST_SAMPLES = 20
"""Number of samples that are kept of each message."""
OTHER_ERRORS = "other errors"


class ScorerErrors:
    """The errors of a task's scorer, by the positions of the samples."""

    def __init__(self) -> None:
        self._by_sample: dict[int, str] = {}
        self._messages: dict[str, str] = {}

    def note(self, i: int, sample: Sample, why: Unfinished) -> None:
        """Record the error of a sample.

        For a hold-out sample, keep only the type, since messages quote the expected answer.
        """
        hidden = HOLDOUT in sample.metadata and why.raised is not None
        message = str(why.raised) if hidden else f"{why.told}. {why.hint}" if why.hint else why.told
        if message not in self._messages and len(self._messages) >= MOST_ERRORS:
            message = OTHER_ERRORS
        self._by_sample[i] = self._messages.setdefault(message, message)

    def forget(self, i: int) -> None:
        """Remove the error of a sample, if it has one."""
        self._by_sample.pop(i, None)

    def list(self, samples: Sequence[Sample]) -> Iterator[ScorerError]:
        """Yield the errors, the most frequent first."""
        places: dict[str, list[int]] = {}
        for i, message in sorted(self._by_sample.items()):
            places.setdefault(message, []).append(i)
        for message, where in sorted(places.items(), key=lambda item: (-len(item[1]), item[0])):
            some = tuple(_describe(samples[i]) for i in where[:MOST_SAMPLES])
            yield ScorerError(told=message, count=len(where), sample=some[0].id, samples=some)


def _describe(sample: Sample) -> UnscoredSample:
    hidden = HOLDOUT in sample.metadata
    return UnscoredSample(id=sample.id, expected=None if hidden else sample.target)
