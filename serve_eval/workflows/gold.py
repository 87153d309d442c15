"""Check that gold answers score full marks on the whole path of a task.

A prompt that lost its question, an extraction that misses the form of the data, or a scorer with a
fault shows here, before it shows as a loss of a model. The path is that of every run: prompt,
request, HTTP on loopback, answer, extraction, program and scorer.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.shared import build_task
from serve_eval.report.document.listing import ListEntry
from serve_eval.schema import Metric, Plan, Sample, Spec, Task, TaskResult
from serve_eval.schema.media import prompt_sha256
from serve_eval.storage.scores import ScoreRecord, read_scores

Side = Literal["gold", "zero"]

SLACK = 1e-9
"""Rounding errors of a score that is full marks, or nothing."""
SCORER_S = 60.0
"""Seconds that a scorer may take, so that a busy machine is no finding."""
SERVER = {"strict_fields": True, "prompt_logprobs": "echo", "accuracy": 1.0}
"""Options of the simulated endpoint, which refuses fields that no server knows."""


@freeze
class GoldRow:
    """A sample whose gold answer has less than full marks, or whose wrong answer scores.

    `value` is None if the answer has no score. `cut`: it was longer than `max_tokens`.
    """

    id: str
    side: Side
    value: float | None
    outcome: str
    answer: str | None = None
    cut: bool = False


MADE_UP = 0.9
"""Share of the made-up answers that must have full marks, where the data has no gold answers."""


@freeze
class GoldCheck:
    """The check of one task.

    `samples` were asked twice: `gold` of them have full marks for the gold answer, and `zero` have
    nothing for the wrong one. `rows` are the others, and `values` the values of the two runs.
    `errors` say why samples or figures are missing. `shared` more were asked, which ask the same as
    a sample with other answers, so that no server is right about both. `no_gold` says why the data
    has no gold answers ("": it has). `relative`: no score is full marks, so that a gold answer only
    has to be better than the wrong one.
    """

    task: str
    samples: int
    gold: int
    zero: int
    shared: int
    rows: tuple[GoldRow, ...]
    no_gold: str
    relative: bool
    values: tuple[float | None, float | None] = (None, None)
    errors: tuple[str, ...] = ()
    wall_s: float = 0.0

    @property
    def passed(self) -> bool:
        """True if every gold answer has full marks, and no wrong one has any.

        Of answers that are made up, MADE_UP of all suffice: some samples have none that is right.
        """
        wanted = MADE_UP * self.samples if self.no_gold else self.samples
        return self.samples > 0 and self.zero == self.samples and self.gold >= wanted


async def check_gold(plan: Plan, environ: Mapping[str, str]) -> list[GoldCheck]:
    """Return the check of each task of a plan with the launcher of `use_server`.

    Tasks that are asked together have one time. The folders of the runs are removed afterwards.
    Raises ServeEvalError if a run stops.
    """
    for spec in plan.tasks:
        if build_task(spec).questions is not None:
            raise PlanError(
                f"{spec.name}: models judge its answers, so no text is known to have full marks",
                hint="Check the judge with serve-eval run and answers that you know.",
            )
    began = time.monotonic()
    handed: list[PreparedTask] = []
    with tempfile.TemporaryDirectory(prefix="serve-eval-gold-") as folder:
        gold, zero = Path(folder) / "gold", Path(folder) / "zero"
        first = await evaluate(plan, gold, environ=environ, hand_on=handed.extend)
        wrong = replace(plan.launcher, options={**plan.launcher.options, "accuracy": 0.0})
        settled = tuple(one.spec for one in handed) != plan.tasks  # a run has found their prefixes
        second = await evaluate(
            replace(plan, launcher=wrong),
            zero,
            environ=environ,
            prepared=None if settled else handed,
        )
        results = [[one.result for one in report.tasks] for report in (first, second)]
        names = [one.task.name for one in handed]
        found = [
            _compare(one, read_scores(gold, name), read_scores(zero, name))
            for name, one in zip(names, handed, strict=True)
        ]
    wall_s = time.monotonic() - began
    return [
        replace(
            one,
            values=(right.value, wrong.value),
            errors=(*_explain(right), *_explain(wrong)),
            wall_s=wall_s,
        )
        for one, right, wrong in zip(found, *results, strict=True)
    ]


def use_server(plan: Plan) -> Plan:
    """Return the plan with the server that answers gold, and without a verdict."""
    limits = replace(plan.limits, scorer_timeout_s=max(SCORER_S, plan.limits.scorer_timeout_s))
    return replace(
        plan,
        launcher=Spec(name="simulated", options=SERVER),
        limits=limits,
        no_reference=True,
        repeats=1,
        repeats_of={},
    )


def _compare(
    prepared: PreparedTask, gold: Mapping[str, ScoreRecord], zero: Mapping[str, ScoreRecord]
) -> GoldCheck:
    """Return the check of a task without its values and its time."""
    task, samples = prepared.task, prepared.dataset.samples
    shared = _find_contradicted(task, samples)
    asked = [sample.id for sample in samples if sample.id not in shared]
    rows = [row for one in asked for row in _judge(task, one, gold.get(one), zero.get(one))]
    failed = {side: sum(row.side == side for row in rows) for side in ("gold", "zero")}
    return GoldCheck(
        task=task.name,
        samples=len(asked),
        gold=len(asked) - failed["gold"],
        zero=len(asked) - failed["zero"],
        shared=len(shared),
        rows=tuple(rows),
        no_gold=task.no_gold,
        relative=_is_relative(task),
    )


def _explain(result: TaskResult) -> Iterator[str]:
    """Yield why samples of a run have no score, and which figures the task could not compute."""
    yield from (error.line for error in result.scorer_errors)
    yield from result.hook_errors
    yield from (f"{count} requests failed: {kind}" for kind, count in result.failures.items())


def _judge(
    task: Task, name: str, gold: ScoreRecord | None, zero: ScoreRecord | None
) -> Iterator[GoldRow]:
    """Yield what is wrong with the scores of a sample."""
    best, worst = _ends(task.metric)
    if best is None or _is_relative(task):
        better = gold is not None and zero is not None and _is_better(task.metric, gold, zero)
        gold_right, zero_right = better, zero is not None
    else:
        gold_right = gold is not None and _is_same(gold.value, best)
        zero_right = zero is not None and _has_nothing(zero, best, worst)
    if not gold_right:
        yield _row(name, "gold", gold)
    if not zero_right:
        yield _row(name, "zero", zero)


def _is_relative(task: Task) -> bool:
    """Return True if no number is full marks: a gold answer must be better than the wrong one."""
    best, worst = _ends(task.metric)
    return best is None or (worst is None and bool(task.no_gold))


def _ends(metric: Metric) -> tuple[float | None, float | None]:
    """Return the best and the worst score (None: there is none)."""
    ends = (metric.hi, metric.lo)
    return ends if metric.higher_is_better else ends[::-1]


def _is_better(metric: Metric, one: ScoreRecord, other: ScoreRecord) -> bool:
    a, b = (one.value, other.value) if metric.higher_is_better else (other.value, one.value)
    return math.isfinite(a) and math.isfinite(b) and a > b


def _has_nothing(found: ScoreRecord, best: float, worst: float | None) -> bool:
    return not _is_same(found.value, best) if worst is None else _is_same(found.value, worst)


def _is_same(value: float, end: float) -> bool:
    return math.isclose(value, end, abs_tol=SLACK)


def _row(name: str, side: Side, found: ScoreRecord | None) -> GoldRow:
    if found is None:
        return GoldRow(id=name, side=side, value=None, outcome="no score")
    return GoldRow(
        id=name,
        side=side,
        value=found.value,
        outcome=str(found.outcome),
        answer=found.answer,
        cut=found.truncated,
    )


def _find_contradicted(task: Task, samples: Sequence[Sample]) -> set[str]:
    """Return the samples whose prompt another sample has with other answers."""
    by_prompt: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_prompt[prompt_sha256(sample.prompt)].append(sample)
    several = [same for same in by_prompt.values() if len(same) > 1]
    return {one.id for same in several if len({task.answers(s) for s in same}) > 1 for one in same}


FIRST, MOST = 3, 40
"""Rows of each kind that an entry names, and lines of them that -v shows."""
_SIDES: dict[Side, str] = {
    "gold": "gold answers without full marks",
    "zero": "wrong answers with a score",
}


def make_entry(found: GoldCheck) -> ListEntry:
    """Return the entry of a task: its counts, and the first rows that are not as they should be."""
    return ListEntry(
        f"task {found.task}",
        "; ".join(_say(found)),
        more=[f"{row.id}: {_say_row(row)}" for row in found.rows[:MOST]],
        wrong=not found.passed,
        keep=True,
    )


def _say(found: GoldCheck) -> Iterator[str]:
    made = " (made up)" if found.no_gold else ""
    scores = (
        "score better than the wrong ones"
        if found.relative
        else f"score full marks, {found.zero:,} wrong ones nothing"
    )
    yield (
        f"{found.samples:,} samples, {found.gold:,} gold answers{made} {scores},"
        f" {found.wall_s:.1f} s"
    )
    for side, words in _SIDES.items():
        if rows := [row for row in found.rows if row.side == side]:
            named = ", ".join(f"{row.id} ({_say_row(row)})" for row in rows[:FIRST])
            more = f", and {len(rows) - FIRST:,} more" if len(rows) > FIRST else ""
            yield f"{words}: {len(rows):,}, such as {named}{more}"
    yield from found.errors
    if found.no_gold:
        yield f"the data has no gold answers: {found.no_gold}"
    if found.shared:
        yield (
            f"{found.shared:,} more samples ask the same as another one with other answers, and"
            " are not counted"
        )
    if not found.samples:
        yield "no sample was checked"


def _say_row(row: GoldRow) -> str:
    """Return the score of a row in a few words."""
    if row.value is None:
        return row.outcome
    cut = ", cut at max_tokens" if row.cut else ""
    read = "" if row.answer is None else f", read as {row.answer[:40]!r}"
    return f"{row.outcome} {row.value:g}{cut}{read}"
