"""What an answer is worth, or why that cannot be said: a scorer that raises or never ends costs
that answer its score, and nothing else.

Tasks that are not known to be quick are scored in processes of their own
(serve_eval.processes.bounded_call), where each is built again of its name and options.
`limits.scorer_timeout_s` bounds the time it takes there, and it never holds up the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from serve_eval.errors import ServeEvalError
from serve_eval.plugins import extensions, registry
from serve_eval.processes.bounded_call import Apart, Unfinished
from serve_eval.processes.forkserver import describe_error, escape
from serve_eval.protocol.shared import TASKS, bare_task
from serve_eval.schema import DataRoots, Outcome, Response, Sample, Score, Spec, Task

T = TypeVar("T")
Grade = tuple[Score, str | None]
"""A score with the way in which the answer failed (None: in none, or the task does not tell)."""
SLACK = 1e-9
"""By how much rounding may carry a score beyond its range."""
_FLOATS, _TEXTS = frozenset({float}), frozenset({str})
_REPEAT = re.compile(r"#\d+$")


def score_response(task: Task, sample: Sample, response: Response) -> Score:
    """The score of an answer. Without any text or tool call most tasks' scorers have nothing to
    read: the outcome says why.
    """
    said = (
        response.prompt_logprobs is not None
        or response.choice_logprobs is not None
        or response.tool_calls
    )
    if response.text.strip() or said or not task.metric.higher_is_better:
        return task.score(sample, response)
    if response.refusal or response.finish_reason == "content_filter":
        outcome = Outcome.REFUSED
    else:
        outcome = Outcome.REASONING_ONLY if response.reasoning else Outcome.EMPTY
    if task.judges_empty:
        score = task.score(sample, response)
        nothing = score.outcome in (Outcome.WRONG, Outcome.UNPARSED)
        return msgspec.structs.replace(score, outcome=outcome) if nothing else score
    return Score(value=task.metric.lo or 0.0, outcome=outcome)


def grade(task: Task, sample: Sample, response: Response) -> Grade:
    """The score of an answer and in which way it failed. Raises what the scorer raises, and
    ServeEvalError for what is no score.
    """
    score = score_response(task, sample, response)
    metric = task.metric
    if not (
        type(score) is Score
        and type(score.value) is float
        and type(score.outcome) is Outcome
        and (score.answer is None or type(score.answer) is str)
        and _FLOATS.issuperset(map(type, score.parts.values()))
        and _TEXTS.issuperset(map(type, score.parts))
        and "".join(
            score.parts
        ).isprintable()  # half of a surrogate pair, which cannot be written, is not
    ):
        score = _in_form(score)
    lo, hi, value = metric.lo, metric.hi, score.value
    if not (
        (lo is None or lo - SLACK <= value)
        and (hi is None or value <= hi + SLACK)
        and value - value == 0.0
    ):  # NaN and the infinities are in no range
        ends = f"{'-inf' if lo is None else f'{lo:g}'} to {'inf' if hi is None else f'{hi:g}'}"
        raise ServeEvalError(f"the scorer gave {value:g}, which is not within {ends}")
    for name, part in score.parts.items():
        if part - part != 0.0:
            raise ServeEvalError(
                f"the scorer gave {part:g} for its part {name!r}, which is no number"
            )
    if task.failure_mode is None or score.outcome is Outcome.CORRECT:
        return score, None
    try:
        mode = escape(str(task.failure_mode(sample, response, score)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        mode = f"unknown: failure_mode raised {type(error).__name__}"
    return score, mode


def try_grading(task: Task, sample: Sample, response: Response) -> Grade | Unfinished:
    """The grade of an answer, or what the scorer raised, here and now."""
    try:
        return grade(task, sample, response)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: no scorer ends a run
        return Unfinished(**describe_error(error))


async def grade_answer(
    task: Task, sample: Sample, response: Response, apart: ScoredApart | None
) -> Grade | Unfinished:
    """The grade of an answer, had in another process where there is one for the task."""
    if apart is None:
        return try_grading(task, sample, response)
    return await asyncio.wrap_future(apart(sample, response))


def _in_form(score: Any) -> Score:
    """A score in the types that a Score has, of one with others that mean the same, such as
    numpy's.
    """
    if not isinstance(score, Score):
        raise ServeEvalError(f"the scorer gave a {type(score).__name__}, and not a Score")
    try:
        return Score(
            value=float(score.value),
            outcome=Outcome(score.outcome),
            answer=None if score.answer is None else str(score.answer),
            parts={escape(str(name)): float(part) for name, part in score.parts.items()},
            mode=score.mode,
            kept=score.kept,
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ServeEvalError(
            f"the scorer gave a Score with a field that is none: {error}"
        ) from error


# -------------------------------------------------------------------------------------------- in
# processes of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a task is built again in another process. `wanted` is what its `load` is asked for,
    `code` has the checksums of the code of others that this process runs, `places` the folders in
    which it looks for tasks and scorers.
    """

    spec: Spec
    include_path: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]
    dataset_roots: tuple[str, ...]
    allow_hub: bool
    wanted: int
    code: Mapping[str, str]


def recipe_for(
    spec: Spec, *, dataset_roots: tuple[str, ...], allow_hub: bool, wanted: int
) -> Recipe:
    """Return how another process builds a task as it is built here."""
    return Recipe(
        spec=spec,
        include_path=extensions.list_included(),
        places=registry.places((TASKS, registry.SCORERS)),
        dataset_roots=dataset_roots,
        allow_hub=allow_hub,
        wanted=wanted,
        code={name: one.sha256 for name, one in extensions.list_loaded().items()},
    )


ScoredApart = Callable[[Sample, Response], "Future[Grade | Unfinished]"]


class ScoringProcesses:
    """Scores answers of tasks, by their names, in processes of their own, which start with the
    first one.
    """

    def __init__(self, recipes: Mapping[str, Recipe], *, limit_s: float) -> None:
        makers = {name: (rebuilt, (recipe,)) for name, recipe in recipes.items()}
        self._apart = Apart(makers, limit_s=limit_s) if makers else None

    def of(self, name: str) -> ScoredApart | None:
        """Return the scoring function of a task; None for one that is scored here."""
        apart = self._apart
        if apart is None or name not in apart.names:
            return None
        return lambda sample, response: apart.submit(name, sample, response)

    async def wait_for(self, scores: Callable[..., T], *args: Any) -> T:
        """What `scores` gives, which waits for these processes: in a thread, so that a signal is
        heard meanwhile. A cancellation ends them, and with them the wait. Where nothing is scored
        so it is called here.
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
        """Ends the processes."""
        if self._apart is not None:
            self._apart.close()

    def __enter__(self) -> ScoringProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rebuilt(recipe: Recipe) -> Callable[[Sample, Response], Grade]:
    """Return the scoring function of a task that is built again here. Raises ServeEvalError where
    it would be another one.
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
            f"{', '.join(changed)}: the file has changed since the command began",
            hint="Give the command again: it scores all answers by the file as it is now.",
        )
    own: dict[str, Sample] = {}
    if task.scoring == "loaded":
        roots = DataRoots(roots=tuple(map(Path, recipe.dataset_roots)), allow_hub=recipe.allow_hub)
        own = {sample.id: sample for sample in task.load(roots, recipe.wanted).samples}

    def score(sample: Sample, response: Response) -> Grade:
        mine = own.get(sample.id) or own.get(_REPEAT.sub("", sample.id))
        if mine is not None and (mine.target != sample.target or mine.metadata != sample.metadata):
            raise ServeEvalError(
                f"the task's load gives sample {sample.id} another target or other metadata each"
                " time",
                hint="Let load give the same samples whenever it is called.",
            )
        return grade(task, sample, response)

    return score


def why_not_rebuilt(recipe: Recipe, *, limit_s: float) -> Unfinished | None:
    """Return why a task cannot be built and loaded in another process; None where it can."""
    with Apart({"task": (_build, (recipe,))}, limit_s=limit_s, at_once=1) as apart:
        problem: Unfinished | None = apart.call("task")
        return problem


def _build(recipe: Recipe) -> Callable[[], None]:
    rebuilt(recipe)
    return lambda: None
