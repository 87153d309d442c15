"""Stop a task before all its samples are asked, once its verdict is almost certain.

The guarantees of `stats.early_stop` and `stats.early_paired` hold for values in a random order
without gaps. So samples start in a permutation drawn for the run, and only its contiguous prefix is
examined. A sample that finishes beyond the first unfinished one waits, since quick answers differ
from slow ones. If samples have groups, a paired rule needs a permutation of the groups, each asked
whole, and examines a group once all its samples have finished (`stats.early_groups`).

With repeats, a paired rule needs rounds that ask every prompt once, always in the same random order
(`stats.early_repeats`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from serve_eval.evaluation.engine.lane import arrange, arrange_groups, list_group_keys, task_seed
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import MEAN, EarlyStop, Spec
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.early_paired import EarlyGroups, EarlyPaired
from serve_eval.stats.early_repeats import Blocks, EarlyRepeats, make_blocks
from serve_eval.stats.early_stop import EarlyClassic, EarlyVerdict
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.stats.onset import DriftHold
from serve_eval.stats.repeats import instability
from serve_eval.verdicts import pairing, reference_samples
from serve_eval.verdicts.repaired import read_policy
from serve_eval.verdicts.validity import MAX_MISSING


class EarlyStopping:
    """Examine the samples of a task in `order`, a permutation of all positions, up to a gap.

    `sizes` are those of the groups that follow each other in `order`; None: each sample is alone.
    `rounds` is the number of rounds of all prompts that `order` consists of. A sample that has no
    answer after all attempts counts as the worst value for each bet. `before` holds the reference's
    mean scores by prompt, if known. While values look worse than earlier ones, nothing is decided.
    `test` makes a new test for the verdict rule named `rule`. A sample whose first answer is
    unknown counts as the worst value for each bet too, but not as missing, unless
    `trusts_repaired`.
    """

    def __init__(
        self,
        accumulator: ScoreAccumulator,
        test: Callable[[], EarlyVerdict],
        order: Sequence[int],
        *,
        seed: int,
        higher_is_better: bool,
        before: Sequence[float] | None,
        rule: str = "classic",
        trusts_repaired: bool = False,
        sizes: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> None:
        self._sizes, self._rounds = sizes, rounds
        self._trusts_repaired = trusts_repaired
        self._accumulator, self._new_test, self._seed, self._before, self._rule = (
            accumulator,
            test,
            seed,
            before,
            rule,
        )
        self.order: Final = order
        self._sign = 1.0 if higher_is_better else -1.0
        metric = accumulator.task.metric
        low, high = sorted(
            (self._sign * _limit_known(metric.lo), self._sign * _limit_known(metric.hi))
        )
        self._low, self._high, self._scale = low, high, metric.scale
        self._range = _limit_known(metric.lo), _limit_known(metric.hi)
        self.restart()

    def restart(self) -> None:
        """Start again from the first sample, because answers were withdrawn."""
        units = len(self.order) if self._sizes is None else len(self._sizes)
        self._hold, self._test, self._units = DriftHold(units, self._low), self._new_test(), 0
        self._test.held = self._hold.holds

    @property
    def looked_at(self) -> int:
        """Number of samples examined so far."""
        return self._test.looked_at

    @property
    def decision(self) -> Decision | None:
        """The verdict, once decided."""
        return self._test.decision

    def look(self) -> bool:
        """Examine what has finished since the last call. Return True once a verdict is decided."""
        test, order = self._test, self.order
        while test.decision is None and test.looked_at < len(order):
            size = 1 if self._sizes is None else self._sizes[self._units]
            unit = order[test.looked_at : test.looked_at + size]
            scores = [score for i in unit if (score := self._accumulator.score(i)) is not None]
            if len(scores) < size:
                break
            self._units += 1
            self._examine(unit, scores)
        return test.decision is not None

    def _examine(self, unit: Sequence[int], scores: Sequence[float]) -> None:
        """Bet on the samples of a unit: one sample, or all those of a group."""
        before, low, high, sign = self._before, self._low, self._high, self._sign
        ranges, values, missing = [], [], 0
        known = [] if before is None else [sign * before[i % len(before)] for i in unit]
        for place, (i, score) in enumerate(zip(unit, scores, strict=True)):
            offset = known[place] if known else 0.0
            if known:
                score = reference_samples.as_stored(score, *self._range)
            lost = math.isnan(score)
            missing += lost
            values.append(low if lost else sign * score)
            doubted = lost or (not self._trusts_repaired and self._accumulator.is_doubted(i))
            worst, best = (low, high) if doubted else (values[-1], values[-1])
            ranges.append((worst - offset, best - offset))
        self._hold.add(
            None if missing == len(unit) else math.fsum(values) / len(values),
            math.fsum(known) / len(known) if known else None,
        )
        self._test.update_unit(ranges, missing)

    def result(self) -> EarlyStop:
        """Return the progress, based on what is now known of the samples."""
        test = self._test
        looked_at = [
            score
            for i in self.order[: self.looked_at]
            if (score := self._accumulator.score(i)) is not None
        ]
        answered = [score for score in looked_at if not math.isnan(score)]
        saved = (
            sum(self._accumulator.score(i) is None for i in self.order)
            if self.decision is not None
            else 0
        )
        return EarlyStop(
            eps=test.eps,
            order_seed=self._seed,
            paired=self._before is not None,
            planned=len(self.order),
            looked_at=self.looked_at,
            missing=len(looked_at) - len(answered),
            stopped=saved > 0,
            decision=None if self.decision is None else self.decision.value,
            estimate=self._scale * (math.fsum(answered) / len(answered)) if answered else None,
            saved=saved,
            log_wealth_pass=_finite(test.log_wealth_pass),
            log_wealth_fail=_finite(test.log_wealth_fail),
            log_wealth_answered=_finite(test.log_wealth_answered),
            rule=self._rule,
            alpha=test.alpha if isinstance(test, EarlyPaired) else None,
            margin=self._scale * test.margin if isinstance(test, EarlyPaired) else None,
            held=self._hold.times,
            groups=None if self._sizes is None else len(self._sizes),
            rounds=self._rounds,
        )


def looks_at_pairs(rule: Spec) -> bool:
    """Return True if a verdict rule stops early by a test of pairs, which spends of its alpha."""
    return load_verdict_rule(rule.name).early_stop == "pairs"


def watch(
    prepared: PreparedTask,
    accumulator: ScoreAccumulator,
    *,
    eps: float,
    seed: int,
    tests: int = 1,
) -> tuple[EarlyStopping | None, str | None]:
    """Return the early stopping of a task for its rule, or the reason against it.

    The looks of `tests` paired tasks share the alpha of one.

    It needs a reference, a metric with a range, and a value that is the mean of the scores, which
    the bets are about. A paired rule also needs the reference's scores per sample. It bets on whole
    groups if samples share some, with all their repeats.
    """
    if prepared.reference is None:
        return None, "no early stop: there is no reference"
    if prepared.task.aggregation is not MEAN:
        return (
            None,
            (
                f"no early stop: the value is the {prepared.task.aggregation.name}, not the mean of"
                " the scores"
            ),
        )
    metric = prepared.task.metric
    if metric.lo is None or metric.hi is None:
        return None, f"no early stop: {metric.name} has no range"
    verdict, rule = prepared.rule, load_verdict_rule(prepared.rule.name)
    h = prepared.hypothesis
    assert h.num_samples is not None
    higher = (
        metric.higher_is_better
        if prepared.reference.higher_is_better is None
        else prepared.reference.higher_is_better
    )
    threshold = prepared.reference.threshold
    if threshold is None:
        threshold = classic_test(
            h.num_samples, prepared.reference.value, h.sigma, h.alpha, h.beta, higher
        ).threshold
    before, note = pairing.reference_means(prepared.dataset, prepared.reference)
    n, sign = len(accumulator.samples), 1.0 if higher else -1.0
    max_missing = float(verdict.options.get("max_missing", MAX_MISSING))  # type: ignore[arg-type]
    test: Callable[[], EarlyVerdict]
    order, sizes = _draw_order(prepared, accumulator, seed, pairs=rule.early_stop == "pairs")
    repeats, rounds = accumulator.repeats, None
    if rule.early_stop == "pairs":
        if before is None:
            return None, note or "no early stop: the reference has no scores per sample"
        if pairing.runs_differ(prepared.dataset, prepared.reference):
            return (
                None,
                (
                    "no early stop: the reference's runs differ as a whole, which only the final"
                    " test can allow for"
                ),
            )
        margin = verdict.options.get("margin", rule.default("margin"))
        points = abs(threshold - prepared.reference.value) if margin is None else float(margin)  # type: ignore[arg-type]
        alpha, span = SPENT_ON_LOOKS * h.alpha / max(1, tests), metric.hi - metric.lo
        kind: Callable[..., EarlyVerdict] = (
            partial(EarlyPaired, n) if sizes is None else partial(EarlyGroups, sizes)
        )
        if sizes is None and repeats > 1:
            prompts, rounds = n // repeats, repeats
            blocks = _make_blocks(prepared, order[:prompts], repeats)
            kind = partial(EarlyRepeats, prompts, repeats, blocks=blocks)
        test = partial(
            kind, points / metric.scale, alpha=alpha, span=span, eps=eps, max_missing=max_missing
        )
    elif before is None:
        low, high = sorted((sign * metric.lo, sign * metric.hi))
        mean = sign * threshold / metric.scale
        test = partial(
            EarlyClassic.mean_only, n, mean, lo=low, hi=high, eps=eps, max_missing=max_missing
        )
    else:
        margin_left = sign * (math.fsum(before) / len(before) - threshold / metric.scale)
        span = metric.hi - metric.lo
        test = partial(
            EarlyClassic.for_pairs, n, margin_left, eps=eps, span=span, max_missing=max_missing
        )
    prefix = EarlyStopping(
        accumulator,
        test,
        order,
        seed=seed,
        higher_is_better=higher,
        before=before,
        rule=verdict.name,
        trusts_repaired=read_policy(verdict.options).repaired == "trust",
        sizes=sizes,
        rounds=rounds,
    )
    return prefix, note


def _draw_order(
    prepared: PreparedTask, accumulator: ScoreAccumulator, seed: int, *, pairs: bool
) -> tuple[Sequence[int], Sequence[int] | None]:
    """Return the order of the samples, and the sizes of its groups if it keeps groups whole.

    For a rule of `pairs`, the repeats are rounds of the same order, or part of their groups.
    """
    own, n = task_seed(seed, prepared.task.name), len(prepared.dataset.samples)
    every = range(len(accumulator.samples))
    if not pairs:
        return arrange(accumulator.samples, every, "random", own), None
    if (keys := list_group_keys(prepared.dataset.samples)) is not None:
        return arrange_groups([keys[i % n] for i in every], own)
    prompts = arrange(prepared.dataset.samples, range(n), "random", own)
    return array("q", (i + first for first in every[::n] for i in prompts)), None


def _make_blocks(prepared: PreparedTask, prompts: Sequence[int], repeats: int) -> Blocks | None:
    """Return the reference's answers that each block of rounds of `prompts` is compared with."""
    assert prepared.reference is not None
    found = pairing.read_stored_runs(prepared.dataset, prepared.reference)
    if found is None or len(found[0]) < 2:
        return None
    runs = [[run[i] for i in prompts] for run in found[0]]
    sign = 1.0 if pairing.is_higher_better(prepared.task.metric, prepared.reference) else -1.0
    oriented = [[sign * score for score in run] for run in runs]
    return make_blocks(oriented, repeats, instability(runs).variance)


def _limit_known(bound: float | None) -> float:
    assert bound is not None
    return bound


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
