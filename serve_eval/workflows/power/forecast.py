"""Predict the tokens of a run before anything is sent, and those that a verdict needs.

Prompts are counted by the tokenizer of the server if its launcher or the folder of its model has
one, else by their characters. Answers are expected to be as long as those of the reference's first
run, or of the newest finished run of the task and the model, or else at most as long as allowed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from serve_eval.evaluation.earlier_run import find_earlier_task
from serve_eval.evaluation.engine.budget import CHARS_PER_TOKEN, count_asked, estimate_prompt
from serve_eval.evaluation.prompt_lengths import open_counter
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_launcher, load_verdict_rule
from serve_eval.protocol.conversation import bound_requests, list_prompts
from serve_eval.schema import MEAN, Plan, Sample, Task
from serve_eval.schema.task import CountTokens
from serve_eval.stats.classic import num_samples_for
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.stats.planning import num_noninferior_for
from serve_eval.verdicts import pairing
from serve_eval.verdicts.reference_noise import USUAL_FLIP_RATE, measure_noise
from serve_eval.workflows.power.answers import count_pairs
from serve_eval.workflows.power.assumed import Assumed

MOST_COUNTED = 200
"""Prompts of a task that a tokenizer counts; the others are expected to be as long on average."""
POINTS = 100.0
"""Scale of a metric in points."""
DROPS = (1.0, 2.0, 5.0)
"""Drops in points for which the prompts and tokens of a verdict are predicted."""


@freeze
class TokenForecast:
    """The tokens that a task is expected to cost.

    `prompts_by` and `answers_by` say how they are known; `bounded`: answers cost that at most.
    """

    answers: int
    prompt_tokens: int
    prompts_by: str
    generated_tokens: int
    answers_by: str
    bounded: bool

    @property
    def total(self) -> int:
        """All tokens."""
        return self.prompt_tokens + self.generated_tokens


def forecast_tokens(plan: Plan, prepared: PreparedTask, out_dir: Path | None) -> TokenForecast:
    """Return the tokens that a task is expected to cost. Earlier runs lie next to `out_dir`."""
    samples, times = prepared.dataset.samples, plan.times(prepared.task.name)
    prompts, prompts_by = _measure_prompts(plan, samples)
    length, answers_by = _find_length(plan, prepared, out_dir)
    asked = sum(count_asked(prepared.task, sample) for sample in samples)
    prompts += math.fsum(_count_resent(prepared.task, sample, length) for sample in samples)
    return TokenForecast(
        answers=times * len(samples),
        prompt_tokens=round(times * prompts),
        prompts_by=prompts_by,
        generated_tokens=times * (asked if length is None else round(length * len(samples))),
        answers_by=answers_by or f"the limit of {prepared.task.sampling.max_tokens:,} an answer",
        bounded=length is None,
    )


def _count_resent(task: Task, sample: Sample, length: float | None) -> float:
    """Return the tokens of answers that later turns of a conversation send again."""
    if sample.conversation is None:
        return 0.0
    if length is None:
        requests = bound_requests(sample.conversation)
        return count_asked(task, sample) * (requests - 1) / 2
    return length * len(sample.conversation.turns) / 2


def _measure_prompts(plan: Plan, samples: Sequence[Sample]) -> tuple[float, str]:
    """Return the tokens of all prompts, and how they were counted."""
    launcher = load_launcher(plan.launcher.name)
    with ExitStack() as opened:
        options = launcher.check_options(plan.launcher.options)
        count = open_counter(plan, launcher, options, opened)
        if count is not None:
            chosen = _choose(samples, plan.seed)
            counted = math.fsum(_count(count, sample) for sample in chosen)
            by = "the server's tokenizer"
            by += "" if len(chosen) == len(samples) else f", {len(chosen)} of them"
            return counted * len(samples) / len(chosen), by
    total = math.fsum(map(estimate_prompt, samples))
    return total, f"characters, {CHARS_PER_TOKEN} a token; without media and chat template"


def _choose(samples: Sequence[Sample], seed: int) -> Sequence[Sample]:
    if len(samples) <= MOST_COUNTED:
        return samples
    places = random.Random(f"{seed}:forecast").sample(range(len(samples)), MOST_COUNTED)
    return [samples[i] for i in places]


def _count(count: CountTokens, sample: Sample) -> int:
    if not sample.choices:
        return sum(map(count, list_prompts(sample)))
    return sum(count(before + choice) for before, choice in sample.continued)


def _find_length(
    plan: Plan, prepared: PreparedTask, out_dir: Path | None
) -> tuple[float | None, str]:
    """Return the mean tokens of an answer and where they are from; None if they are not known."""
    if prepared.task.prompt_logprobs:
        return None, "the one that a request for a prompt's probabilities allows"
    if prepared.reference is not None:
        stored = pairing.read_stored_answers(prepared.dataset, prepared.reference)
        if stored is not None and stored.counted and stored.lengths:
            mean = math.fsum(stored.lengths) / len(stored.lengths)
            return mean, f"{mean:,.0f} an answer, as in the reference's first run"
    if (found := find_earlier_task(plan, prepared.spec, out_dir)) is not None:
        folder, task = found
        known = task.result.scored - task.traffic.without_usage
        if known > 0 and task.traffic.completion_tokens:
            mean = task.traffic.completion_tokens / known
            return mean, f"{mean:,.0f} an answer, as in {folder}"
    return None, ""


def describe_forecast(
    plan: Plan, prepared: PreparedTask, found: TokenForecast, tests: int
) -> dict[str, Any]:
    """Return the lines of a dry run about the tokens of a task and what a verdict needs.

    `tests` is the number of paired tests of the run, which share alpha.
    """
    most = "at most " if found.bounded else "about "
    about = "" if found.prompts_by.endswith("tokenizer") else "about "
    said: dict[str, Any] = {
        "prompt_tokens": f"{about}{found.prompt_tokens:,} (by {found.prompts_by})",
        "generated_tokens": f"{most}{found.generated_tokens:,} (by {found.answers_by})",
    }
    points = abs(prepared.task.metric.scale) == POINTS
    if prepared.reference is None or prepared.task.aggregation is not MEAN or not points:
        return said
    planned, flips_of = _assume(plan, prepared, tests)
    rule = prepared.rule.name
    each = found.total / max(1, len(prepared.dataset.samples))
    for drop in DROPS:
        n = _count_needed(rule, drop, planned)
        there = len(prepared.dataset.samples)
        more = "" if n <= there else f" (there are {there:,})"
        key = f"drop_of_{drop:g}_point{'' if drop == 1.0 else 's'}"
        said[key] = f"needs {n:,} prompts{more}, {most}{n * each:,.0f} tokens"
    said["drops_are"] = _say_purpose(rule, planned, flips_of)
    return said


def _assume(plan: Plan, prepared: PreparedTask, tests: int) -> tuple[Assumed, str]:
    """Return the numbers that a plan of the task assumes, and the source of the flip rate."""
    h, reference = prepared.hypothesis, prepared.reference
    noise = None if reference is None else measure_noise(prepared.dataset, reference)
    flips, flips_of, effect = USUAL_FLIP_RATE, "the default", 1.0
    if noise is not None:
        effect = noise.effect
        if noise.flip_rate is not None:
            flips = max(noise.flip_rate, 1.0 / noise.prompts)
            flips_of = f"that of the reference's {noise.runs} runs"
    assumed = Assumed(
        flip_rate=flips,
        sigma=h.sigma,
        alpha=h.alpha,
        beta=h.beta,
        margin=None,
        tests=max(1, tests),
        design_effect=effect,
        repeats=plan.times(prepared.task.name),
    )
    return assumed, flips_of


def _count_needed(rule: str, drop: float, planned: Assumed) -> int:
    """Return the prompts with which a rule finds a drop in points, or excludes it."""
    if load_verdict_rule(rule).early_stop != "pairs":
        return num_samples_for(drop, planned.sigma, planned.alpha, planned.beta)
    if rule == "noninferiority":
        pairs = num_noninferior_for(
            drop / 100, planned.flip_rate, planned.alpha, 1.0 - planned.power
        )
        return planned.count_needed(max(math.ceil(pairs / planned.repeats), MIN_UNITS))
    return count_pairs(drop, planned)


def _say_purpose(rule: str, planned: Assumed, flips_of: str) -> str:
    """Return what the prompts of a rule do, and how likely."""
    if load_verdict_rule(rule).early_stop != "pairs":
        return f"found by {rule} with a probability of {1.0 - planned.beta:g}"
    what = "excluded, if there is none," if rule == "noninferiority" else "proven"
    return (
        f"{what} by {rule} with a probability of {planned.power:g}, at a flip rate of"
        f" {planned.flip_rate:.3g} ({flips_of})"
    )


def sum_up(found: Sequence[TokenForecast], bound: int | None) -> str:
    """Return the tokens of all tasks in a few words, with what a bound of tokens pays for."""
    total, bounded = sum(one.total for one in found), any(one.bounded for one in found)
    said = f"{'at most' if bounded else 'about'} {total:,} tokens"
    if bound is None:
        return said
    if total <= bound:
        return f"{said}, within the bound of {bound:,}"
    answers = sum(one.answers for one in found)
    part = answers * bound // max(1, total)
    least = "at least " if bounded else "about "
    return (
        f"{said}, of which the bound of {bound:,} pays for {least}{part:,} of {answers:,} answers"
    )
