"""Collect the answers of workers and of pairs, and find workers with worse or slower answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from serve_eval.evaluation.results.scoring import ScoredApart, grade_answer
from serve_eval.evidence.attribution import latency
from serve_eval.evidence.attribution.bad_workers import EMPTY, FAILURES, WRONG, shares, wrong
from serve_eval.evidence.attribution.latency import Timed
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.core_load import describe_busy, is_busy
from serve_eval.schema import Attribution, Failure, Outcome, Response, Sample, Task, WorkerShare
from serve_eval.stats.contingency import GENERATION, Cell
from serve_eval.workflows.attribute.asking import Asking
from serve_eval.workflows.attribute.workers import SERVER


@dataclass(slots=True)
class PhaseAnswers:
    """Results of one phase, each with the context and generation server that took part.

    None stands for a role that took no part. `texts` holds what each prompt was answered with, the
    thoughts included. `unfinished` counts answers that were cut within their thoughts.
    """

    scores: dict[str, list[tuple[tuple[str | None, str | None], str, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    empty: list[tuple[tuple[str | None, str | None], str, bool]] = field(default_factory=list)
    failed: list[tuple[tuple[str | None, str | None], str, bool]] = field(default_factory=list)
    times: list[Timed] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unfinished: int = 0

    @property
    def shows_answers(self) -> bool:
        """False if most scored answers ended within their thoughts, or none was scored."""
        return 2 * self.unfinished < len(self.empty)

    async def take(
        self,
        who: tuple[str | None, str | None],
        task: Task,
        sample: Sample,
        result: Response | Failure | None,
        apart: ScoredApart | None,
    ) -> None:
        """Add one result (None: one of the workers took no part).

        If the scorer fails, the answer has no score.
        """
        if result is None:
            return
        prompt = prompt_name(task, sample)
        self.failed.append((who, prompt, isinstance(result, Failure)))
        if isinstance(result, Failure):
            self.messages.append(result.message)
            return
        self.texts[prompt].append(text_of(result))
        self.times.append(Timed(*who, prompt, result.latency_s, result.usage.completion_tokens))
        graded = await grade_answer(task, sample, result, apart)
        if isinstance(graded, Unfinished):
            self.unscored.append(f"{sample.id}: {graded.told}")
            return
        score, _ = graded
        self.scores[task.name].append((who, prompt, score.value))
        self.empty.append((who, prompt, score.outcome in (Outcome.EMPTY, Outcome.REASONING_ONLY)))
        self.unfinished += result.truncated and score.outcome == Outcome.REASONING_ONLY


def judge_phase(
    answers: PhaseAnswers, tasks: Mapping[str, Task], alpha: float, *, servers: bool = False
) -> Attribution:
    """Compare each worker with the others on the same prompts: each prompt is a stratum."""
    bad = [
        (who, prompt, is_bad)
        for name, entries in answers.scores.items()
        for (who, prompt, _), is_bad in zip(
            entries, wrong([value for _, _, value in entries], tasks[name].metric), strict=True
        )
    ]
    measures = {WRONG: _cells(bad), EMPTY: _cells(answers.empty), FAILURES: _cells(answers.failed)}
    rows = shares(measures, alpha)
    return Attribution(
        how="asked",
        joined=sum(not failed for _, _, failed in answers.failed),
        planned=len(answers.failed),
        alpha=alpha,
        rows=tuple(_as_server(row) for row in rows) if servers else rows,
    )


def add_times(
    alone: Attribution,
    in_pairs: Attribution | None,
    asking: Asking,
    of_each: PhaseAnswers,
    of_pairs: PhaseAnswers,
    at_a_time: int,
    cores_busy: float | None = None,
) -> tuple[Attribution, Attribution | None, list[str]]:
    """Add the slow workers, and return a sentence about each.

    The prompts that are asked first do not count: they include warm-up, such as the first
    connection between two servers. If the cores of this machine were busy throughout, no worker
    counts as slow: servers that share them wait for each other, and the sentences say so.
    """
    warm = {prompt_name(task, sample) for task, sample in asking.prompts[at_a_time:]}
    each, joint = (
        [one for one in answers.times if one.prompt in warm] for answers in (of_each, of_pairs)
    )
    servers = asking.one_each or any(one.role == SERVER for one in asking.workers)
    rows, pair_rows = latency.rank_asked(each, joint)
    if servers:
        rows = tuple(replace(row, role=SERVER) for row in rows)
    found = [latency.describe_slow(row) for row in rows if row.slow]
    known = {row.worker for row in rows if row.slow}
    found += [
        latency.describe_slow(row, "answer of a pair")
        for row in pair_rows
        if row.slow and row.worker not in known
    ]
    if cores_busy is not None and is_busy(cores_busy):
        found = [
            f"busy_cores: {line.partition(': ')[2]}, {describe_busy(cores_busy)} it"
            for line in found
        ]
        rows, pair_rows = (
            tuple(replace(row, slow=False) for row in some) for some in (rows, pair_rows)
        )
    joint_part = None if in_pairs is None else replace(in_pairs, times=pair_rows)
    return replace(alone, times=rows), joint_part, found


def list_remarks(alone: PhaseAnswers, in_pairs: PhaseAnswers) -> list[str]:
    """Return warnings about answers without a score, and about those that ended in thoughts."""
    told = []
    if unscored := [*alone.unscored, *in_pairs.unscored]:
        told.append(f"the scorer could not judge {len(unscored)} answers, such as {unscored[0]}")
    if unfinished := alone.unfinished + in_pairs.unfinished:
        nothing = "" if alone.shows_answers else ", too many to call a worker sound"
        told.append(
            f"{unfinished} of {len(alone.empty) + len(in_pairs.empty)} answers were cut within the"
            f" model's thoughts{nothing}: run the evaluation again with a larger --max-tokens, or"
            " --set protocol.thinking=off, and attribute that run"
        )
    return told


def text_of(response: Response) -> str:
    """Return everything that the model said, without the space at its start.

    Some servers strip it from streams only.
    """
    return f"{response.reasoning or ''}{response.text}".lstrip()


def prompt_name(task: Task, sample: Sample) -> str:
    """Return the name of a prompt within this package."""
    return f"{task.name}/{sample.id}"


def _as_server(row: WorkerShare) -> WorkerShare:
    return replace(row, role=SERVER) if row.role == GENERATION else row


def _cells(answers: Iterable[tuple[tuple[str | None, str | None], str, bool]]) -> list[Cell]:
    return [
        Cell(context, generation, 1, int(bad), prompt)
        for (context, generation), prompt, bad in answers
    ]
