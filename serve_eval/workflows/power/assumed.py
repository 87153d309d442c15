"""Choose the numbers that a plan assumes: given, measured in a run, or usual."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import ReferenceFileError, RunFolderError, ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import adopt_code
from serve_eval.frozen import freeze
from serve_eval.schema import MEAN, Plan, Reference, TaskReport
from serve_eval.stats.clusters import cluster_keys, design_effect, number_keys
from serve_eval.stats.planning import compute_fail_power, compute_margin
from serve_eval.stats.repeats import instability
from serve_eval.storage import sessions
from serve_eval.storage.report_file import read_report
from serve_eval.storage.scores import ScoreRecord, read_scores
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_noise import USUAL_FLIP_RATE, ReferenceNoise, measure_noise
from serve_eval.workflows.power.question import PowerQuestion

USUAL_SIGMA = 50.0
"""Standard deviation of the classic test in points, unless a reference or a task sets another."""

DEFAULT = "the default"
"""The source of a number that nothing else gives."""


@freeze
class Assumed:
    """The numbers that a plan assumes, and the sources of two of them.

    `sigma` and `margin` are in points; a margin of None is that of the paired rule at n. `power` is
    the wanted chance of detection, `tests` the number of paired tests that Holm corrects. n prompts
    that share groups tell a paired rule as much as n / `design_effect` independent ones, as
    `effect_of` shows. Each side answers each prompt `repeats` times.
    """

    flip_rate: float
    sigma: float
    alpha: float
    beta: float
    margin: float | None
    tests: int
    power: float = 0.8
    design_effect: float = 1.0
    repeats: int = 1
    effect_of: str | None = None
    sigma_of: str = DEFAULT
    flips_of: str = DEFAULT

    @property
    def flips(self) -> float:
        """The flip rate of one answer a side that has the noise of the repeats' means."""
        return self.flip_rate / self.repeats

    @property
    def proof(self) -> float:
        """The level at which a drop must be proven, at the worst rank of Holm's correction."""
        return self.alpha / self.tests

    def count_independent(self, n: int) -> int:
        """Return the number of independent prompts that tell a paired rule as much as n."""
        return max(1, round(n / self.design_effect))

    def count_needed(self, independent: int) -> int:
        """Return the number of prompts that tell as much as `independent` ones without groups."""
        return math.ceil(independent * self.design_effect)

    def find_margin(self, n: int) -> float:
        """Return the margin of the paired rule with n prompts, in points."""
        if self.margin is not None:
            return self.margin
        return 100.0 * compute_margin(n, self.alpha, self.sigma / 100)

    def fail(self, drop: float, n: int, flip_rate: float, alpha: float) -> float:
        """Return the chance that the paired rule fails a drop, given as a share."""
        margin = self.find_margin(n) / 100
        independent = self.count_independent(n)
        return compute_fail_power(drop, independent, flip_rate, alpha, margin, tests=self.tests)


def assume(asked: PowerQuestion, one: Measured | None) -> Assumed:
    """Return what a plan assumes of a task that was measured, or of any task."""
    sigma, sigma_of = _choose_sigma(asked.sigma, one)
    flip_rate, flips_of = _choose_flip_rate(asked.flip_rate, one)
    effect, effect_of = asked.design_effect, None
    if effect is None:
        effect = 1.0 if one is None else one.design_effect
        effect_of = None if one is None else one.effect_of
    return Assumed(
        flip_rate=flip_rate,
        flips_of=flips_of,
        sigma=sigma,
        sigma_of=sigma_of,
        alpha=asked.alpha,
        beta=asked.beta,
        margin=asked.margin,
        tests=asked.tests,
        repeats=asked.repeats,
        design_effect=effect,
        effect_of=effect_of,
    )


def _choose_sigma(given: float | None, one: Measured | None) -> tuple[float, str]:
    """Return the sigma to plan the classic rule with, and its source.

    The rule judges by the sigma of its reference or task, not by that of the run.
    """
    if given is not None:
        return given, "as given"
    if one is None:
        return USUAL_SIGMA, DEFAULT
    if one.judged_by is not None:
        other = "" if not one.sigma else f"; the measured {one.sigma:.3f} judges nothing"
        return one.judged_by, (
            f"by which the classic rule judged this run: that of its reference{other}"
        )
    if not one.sigma:
        return USUAL_SIGMA, "the default: the run shows no spread"
    return one.sigma, (
        "measured: a reference that is registered from this run sets it; against one without a"
        f" sigma the classic rule judges with {USUAL_SIGMA:g}"
    )


def _choose_flip_rate(given: float | None, one: Measured | None) -> tuple[float, str]:
    """Return the flip rate to plan with, and its source.

    One that was measured counts a flip at least: none in n prompts do not mean that there are none.
    """
    if given is not None:
        return given, "as given"
    if one is None:
        return USUAL_FLIP_RATE, DEFAULT
    if one.flip_rate is None:
        return USUAL_FLIP_RATE, "the default: the run shows no flips"
    least = max(one.flip_rate, 1.0 / one.n)
    seen = "" if least == one.flip_rate else f"; {one.flip_rate:g} counts as one flip"
    return least, f"measured: {one.flips_of}{seen}"


_REPEAT = re.compile(r".*#[0-9]+", re.DOTALL)
"""The id of a further answer to a prompt."""


@freeze
class Measured:
    """The measurements of one task.

    `sigma` is the standard deviation of its scores in points, `bernoulli` that of right-or-wrong
    scores with the same mean. `judged_by` is the sigma of the classic test that judged the run, or
    would have (None: the run has no reference). `per_second` is the number of samples per second in
    the last session (None: not known). `flip_rate` is the share of prompts on which two runs of the
    endpoint disagree, and `flips_of` says how it was measured (None: it was not). `design_effect`
    is the factor of groups, such as passages, on the variance: of the difference of the reference's
    runs, else of the difference from the reference, else of the value. `effect_of` says which.
    """

    task: str
    n: int
    value: float
    sigma: float
    bernoulli: float
    judged_by: float | None
    per_second: float | None
    flip_rate: float | None
    flips_of: str | None
    design_effect: float = 1.0
    effect_of: str | None = None


def measure_run(run: Path) -> list[Measured]:
    """Return the measurements of the tasks of a run folder; repeats of a prompt count as one.

    Raises RunFolderError if the run has no report or no score, or if the value of a task is not a
    mean of scores: the spread of the scores then says nothing about the spread of the value.
    """
    report, loads = read_report(run), sessions.loads(run)
    rate = loads[-1].finished / loads[-1].wall_s if loads and loads[-1].wall_s else None
    found = []
    for task in report.tasks:
        name, scale, how = task.result.task, task.result.metric.scale, task.result.aggregation
        if how != MEAN.name:
            raise RunFolderError(
                f"{run}: {name} is the {how} of its scores, not their mean: its spread is not known"
            )
        scores = read_scores(run, name)
        values = [scale * line.value for line in scores.values()]
        if not values:
            raise RunFolderError(f"{run}: {name} has no score")
        mean = math.fsum(values) / len(values)
        share = mean / scale if scale else 0.0
        flip_rate, flips_of = _measure_flips(task)
        effect, effect_of = _measure_design_effect(
            report.plan,
            task,
            [line for name, line in scores.items() if not _REPEAT.fullmatch(name)],
        )
        found.append(
            Measured(
                task=name,
                n=math.ceil(len(values) / report.plan.times(name)),
                flip_rate=flip_rate,
                flips_of=flips_of,
                value=mean,
                sigma=math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
                bernoulli=abs(scale) * math.sqrt(max(0.0, share * (1.0 - share))),
                judged_by=task.verdict.sigma,
                per_second=rate,
                design_effect=effect,
                effect_of=effect_of,
            )
        )
    return found


def _measure_design_effect(
    plan: Plan, task: TaskReport, lines: Sequence[ScoreRecord]
) -> tuple[float, str | None]:
    """Return the design effect of the groups of a task, and of which scores it is.

    The runs of a reference show it best: nothing has turned worse between them. It needs the data
    set, which is read if it is on this machine.
    """
    keys = cluster_keys([line.group or "" for line in lines])
    if keys is None:
        return 1.0, None
    noise = _measure_reference(plan, task)
    if noise is not None and noise.groups is not None and noise.runs > 1:
        return noise.effect, noise.source
    if (paired := task.verdict.paired) is not None:
        return paired.design_effect, "of the changes against its reference"
    effect = design_effect([line.value for line in lines], number_keys(keys))
    return effect, "of the run's scores"


def _measure_reference(plan: Plan, task: TaskReport) -> ReferenceNoise | None:
    """Return the noise of a task's reference; None without its scores or without the data set."""
    reference = task.reference
    if reference is None or reference.runs is None or len(reference.runs.values) < 2:
        return None
    for spec in plan.tasks:
        alone = replace(plan, tasks=(spec,), no_reference=True, allow_hub=False)
        try:
            prepared = prepare(adopt_code(alone, ()))
        except (ServeEvalError, OSError):
            continue
        for one in prepared:
            if one.task.name == task.result.task:
                return measure_noise(one.dataset, reference)
    return None


def _measure_flips(task: TaskReport) -> tuple[float | None, str | None]:
    """Return the flip rate of a task with how it was measured, or None for both.

    Repeats show it best: one endpoint answered each prompt several times. Otherwise the runs of the
    reference do, or a reference of one run with this run as the second. What a proven drop turned
    over is no flip of an unchanged endpoint, and is left out.
    """
    stability, paired = task.result.stability, task.verdict.paired
    if stability is not None and stability.flip_rate is not None:
        return stability.flip_rate, f"of its {stability.repeats} repeats"
    if (rate := _flip_rate_of_reference(task.reference)) is not None:
        return rate, "of the runs of its reference"
    if paired is None or paired.flip_rate is None or not paired.pairs:
        return None, None
    down, up = paired.down or 0, paired.up or 0
    counted = f"{down + up} of {paired.pairs} prompts turned over against its reference"
    if paired.finding in ("FAIL", "SMALL_DROP"):
        return 2 * min(down, up) / paired.pairs, f"{counted}, less the proven drop"
    return paired.flip_rate, counted


def _flip_rate_of_reference(reference: Reference | None) -> float | None:
    """Return the flip rate between the runs of a reference; None for one run or without scores."""
    if reference is None or reference.runs is None or len(reference.runs.values) < 2:
        return None
    try:
        stored = reference_samples.read(
            Path(reference.file).parent / reference.runs.samples, reference.runs.sha256
        )
    except ReferenceFileError:
        return None
    return instability([list(run) for run in stored.runs]).flip_rate
