"""Stop a task before all its samples are asked, once its verdict is almost certain.

The guarantees of `stats.early_stop` and `stats.early_paired` hold for values in a random order
without gaps. So samples start in a permutation drawn for the run, and only its contiguous prefix is
examined. A sample that finishes beyond the first unfinished one waits, since quick answers differ
from slow ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from serve_eval.evaluation.engine.order import arrange, task_seed
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import MEAN, EarlyStop, Spec
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.clusters import cluster_keys
from serve_eval.stats.drift_hold import DriftHold
from serve_eval.stats.early_paired import SPENT_ON_LOOKS, EarlyPaired
from serve_eval.stats.early_stop import EarlyClassic, EarlyVerdict
from serve_eval.verdicts import pairing, reference_samples
from serve_eval.verdicts.repaired import read_policy
from serve_eval.verdicts.validity import MAX_MISSING


class EarlyStopping:
    """Examine the samples of a task in `order`, a permutation of all positions, up to a gap.

    A sample that has no answer after all attempts counts as the worst value for each bet. `before`
    holds the reference's mean scores by position, if known. While values look worse than earlier
    ones, nothing is decided. `test` makes a new test for the verdict rule named `rule`. A sample
    whose first answer is unknown counts as the worst value for each bet too, but not as missing,
    unless `trusts_repaired`.
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
    ) -> None:
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
        self._hold, self._test = DriftHold(len(self.order), self._low), self._new_test()
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
        accumulator, order, test, before = self._accumulator, self.order, self._test, self._before
        while test.decision is None and test.looked_at < len(order):
            i = order[test.looked_at]
            score = accumulator.score(i)
            if score is None:
                break
            reference = None if before is None else self._sign * before[i % len(before)]
            offset = reference or 0.0
            if before is not None:
                score = reference_samples.as_stored(score, *self._range)
            if math.isnan(score):
                self._hold.add(None, reference)
                test.update_missing(self._low - offset, self._high - offset)
            elif not self._trusts_repaired and accumulator.is_doubted(i):
                self._hold.add(self._sign * score, reference)
                test.update_unknown(self._low - offset, self._high - offset)
            else:
                self._hold.add(self._sign * score, reference)
                test.update((self._sign * score - offset,))
        return test.decision is not None

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
    the bets are about. A paired rule also needs the reference's scores per sample, and one answer
    per prompt.
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
    if rule.early_stop == "pairs" and (why := _explain_dependence(prepared, accumulator.repeats)):
        return None, f"no early stop: the rule {verdict.name!r} assumes independent prompts, {why}"
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
        test = partial(
            EarlyPaired,
            n,
            points / metric.scale,
            alpha=alpha,
            span=span,
            eps=eps,
            max_missing=max_missing,
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
    order = arrange(accumulator.samples, range(n), "random", task_seed(seed, prepared.task.name))
    prefix = EarlyStopping(
        accumulator,
        test,
        order,
        seed=seed,
        higher_is_better=higher,
        before=before,
        rule=verdict.name,
        trusts_repaired=read_policy(verdict.options).repaired == "trust",
    )
    return prefix, note


def _explain_dependence(prepared: PreparedTask, repeats: int) -> str:
    """Return why the answers of a task are not independent, or an empty text.

    A bet would have to be on whole groups, whose prompts a random order asks far apart.
    """
    if repeats > 1:
        return "and repeats of a prompt are not"
    keys = cluster_keys([sample.group for sample in prepared.dataset.samples])
    if keys is None:
        return ""
    return f"and these {len(keys)} prompts share {len(set(keys))} passages, videos or other groups"


def _limit_known(bound: float | None) -> float:
    assert bound is not None
    return bound


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
