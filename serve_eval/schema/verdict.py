"""The verdict of one task, and the comparisons behind it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze

OTHER_THRESHOLD = ("paired", "noninferiority", "anchors", "acceptance_length")
"""Verdicts of these rules compare something else than the value. Their `threshold` is classic's."""


@freeze
class AnchorComparison:
    """The test of a drop among the anchors.

    Anchors are the prompts that every reference run but the last had right. `reference_lost` of the
    `anchors` prompts were wrong in the last reference run, which did not select them;
    `candidate_lost` in the candidate's first run. `p` is that of "no drop"; `p_range` holds it with
    every missing answer at its best and at its worst.
    """

    anchors: int
    reference_lost: int
    candidate_lost: int
    p: float | None
    p_range: tuple[float, float] | None = None


@freeze
class PairedComparison:
    """The comparison of this run with the runs of a reference on the same prompts.

    Values are in points; negative is worse. `difference` is the mean over the complete pairs, `p`
    that of "no drop"; a drop beyond `lower` is excluded at 1 - `alpha` (None: none is). `down` and
    `up` count changes from right to wrong and from wrong to right in `answer_pairs` pairs of
    answers, if answers are right or wrong: each run is paired with the reference's run of the same
    number (None: an older file, which counts the first runs alone). `interval` is the two-sided one
    of the difference with 95 % confidence (None: nothing is excluded). `margin` is the drop that
    matters. `finding` is PASS, SMALL_DROP (proven, and excluded from reaching the margin), FAIL or
    INCONCLUSIVE, with its reasons.

    `cochran_q` with its `cochran_p` tests whether the runs of a side differ as a whole (None: no
    side has several); `inflation` is the resulting factor on every standard error, 1 if they do
    not. `anchors` is a separate test. `groups` counts the groups of prompts that share a passage, a
    video or the like, which are then the units of every test (None: each prompt is one), and
    `design_effect` is the resulting factor on the variance of the difference, 1 or more.
    """

    reference_runs: int
    candidate_runs: int = 1
    pairs: int
    missing: int
    method: str
    difference: float
    se: float | None
    df: int | None
    down: int | None
    up: int | None
    flip_rate: float | None
    p: float | None
    p_exact: float | None
    alpha: float
    margin: float
    lower: float | None
    upper: float | None
    noninferior: bool
    equivalent: bool
    finding: str
    reasons: tuple[str, ...] = ()
    cochran_q: float | None = None
    cochran_p: float | None = None
    inflation: float = 1.0
    anchors: AnchorComparison | None = None
    interval: tuple[float, float] | None = None
    groups: int | None = None
    design_effect: float = 1.0
    answer_pairs: int | None = None


class VerdictOutcome(StrEnum):
    """The outcome of a task."""

    PASS = "PASS"
    PASS_BY_IDENTITY = "PASS by identity"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_REFERENCE = "NO REFERENCE"
    NOT_JUDGED = "INTEGRATION TEST"
    SHARD = "SHARD"
    UNSUPPORTED = "UNSUPPORTED"
    NOT_ASKED = "NOT ASKED"
    ERROR = "ERROR"


@freeze
class Ability:
    """A probe's finding on whether an endpoint has a needed capability.

    `works` is None if the probe could not decide; the task then runs. `seen` is what the probe saw,
    `help` what would help if it does not work.
    """

    need: str
    works: bool | None
    seen: str
    help: str = ""


@freeze
class EarlyStop:
    """The state of a task that may stop early.

    If it `stopped` under the classic `rule`, its verdict differs from that of all `planned` samples
    with probability at most `eps`. Under a paired rule a drop of `margin` points was excluded or
    shown with an error of at most `alpha`, the part of the task's alpha that the looks may use, and
    too many answers would have been missing with probability at most `eps`.

    The decision uses the first `looked_at` samples of a random order (`order_seed`), of which
    `missing` have no answer; `estimate` is the mean of the others in points, and partial. `paired`:
    the reference's scores per sample were known, not only their mean. `saved` samples have no
    result and need none; a few of their requests were in flight. The wealths of the bets are
    natural logarithms (None: unbounded): 2 / `eps` decides, or 1 / `alpha`, once the wealth for few
    missing answers has reached 1 / `eps`. `held` is how often a decision was delayed because the
    latest answers were worse than those before. `groups` is the number of groups of the planned
    samples if they were asked and examined by whole groups. `rounds` is the number of rounds of all
    prompts in which repeats were asked and examined.
    """

    eps: float
    order_seed: int
    paired: bool
    planned: int
    looked_at: int
    missing: int
    stopped: bool
    decision: str | None
    estimate: float | None
    saved: int
    log_wealth_pass: float | None
    log_wealth_fail: float | None
    log_wealth_answered: float | None = None
    rule: str = "classic"
    alpha: float | None = None
    margin: float | None = None
    held: int = 0
    groups: int | None = None
    rounds: int | None = None


@freeze
class BudgetEnd:
    """The state of a task of which a limit of the run left samples unasked.

    `ended_by` is the limit: max_tokens_total or max_time_s, or end_when_certain. The first `asked`
    of the `planned` samples in random order have an answer or a failure, `missing` of them no
    answer; `unasked` samples have neither. `estimate` is the mean of the answered ones in points,
    with its 95 % `interval`. With a probability of `power`, a drop of `detects` points is found by
    the samples that were asked, and one of `whole_detects` by all. None: not known, as after
    another order.
    """

    ended_by: str
    planned: int
    asked: int
    missing: int
    unasked: int
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    detects: float | None = None
    whole_detects: float | None = None
    power: float = 0.8


@freeze
class IdentityFinding:
    """The answer of a task's probes to the question if the deployment is the reference's.

    If it is `accepted`, the task was not asked, and has no value. Otherwise `why` says what speaks
    against it. `probes` answers began alike and `whole` ones were alike to the end, up to `limit`
    nats; `largest` is the largest distance. A fault in less than `unseen` of the requests would be
    missed with a probability of more than .05. No probe was longer than `longest` prompt tokens.
    `in_flight` were asked at once. `requests` and `tokens` are the cost, `at` is the time in UTC.
    """

    accepted: bool
    why: str = ""
    probes: int = 0
    whole: int = 0
    limit: float | None = None
    largest: float | None = None
    unseen: float | None = None
    longest: int = 0
    in_flight: int = 0
    requests: int = 0
    tokens: int = 0
    at: str = ""


@freeze
class AcceptanceCheck:
    """The check of the acceptance length of speculative decoding (tokens per step).

    `test` is the entry of acceptance_length.yaml, with its `reference` and `least`, the least that
    passes. `length` and `passed` are None if too few answers report it.
    """

    test: str
    reference: float
    least: float
    length: float | None
    passed: bool | None


@freeze
class RepairedPolicy:
    """The part of a plan's verdict about samples whose first answers are unknown.

    With "bound" these answers can be anything; with "trust" the answers that came stand for them.
    Up to `max_repaired`, a share of the planned samples, they are trusted in any case (None: a
    share that can move the value by at most a quarter of the rule's margin). Raises PlanError for a
    share outside 0..1.
    """

    repaired: Literal["bound", "trust"] = "bound"
    max_repaired: float | None = None

    def __post_init__(self) -> None:
        share = self.max_repaired
        if share is not None and not 0.0 <= share <= 1.0:
            raise PlanError(f".max_repaired: must be a share from 0 to 1, not {share:g}")


@freeze
class OtherRule:
    """The outcome of the rule that did not judge: paired next to classic, classic next to others.

    It uses the same alpha and, unless the plan sets another, the same margin.
    """

    rule: str
    outcome: VerdictOutcome


@freeze
class CutEffect:
    """The change that answers could make which were cut off.

    `cut` answers of this run were. If all of them were right, the value is `value` and the rule
    says `outcome`. If instead the `reference_cut` of the `reference_answers` of all its runs were
    right, the reference is `reference_value` and the rule says `reference_outcome`. None: not
    known, or answers can be partly right. If the cuts of its later runs are not known, both numbers
    are those of the first one.
    """

    cut: int
    value: float | None
    outcome: VerdictOutcome | None
    reference_cut: int | None = None
    reference_answers: int | None = None
    reference_value: float | None = None
    reference_outcome: VerdictOutcome | None = None


@freeze
class Verdict:
    """The verdict of one task.

    Values, bounds, reference, threshold, theta and sigma are in points. `num_samples` is the n of
    the formula: the registered one for a full run, the number asked under `--limit`. `protocol`
    says under which protocol the reference is known to have been measured. `paired` exists if the
    reference has scores per sample, under any rule, and `early` if the run may stop early.
    `evaluated` is None if it did. `acceptance` exists if the acceptance length is judged too: the
    outcome is that of both, and if the acceptance length fails, `rule` names it. `other` is what
    the rule that did not judge says (None: it could not be applied). `reference_interval` is that
    of the reference's own value with 95 % confidence (None: its number of samples is not known).
    `rule_named`: the user named the rule. `p_holm` is the p of "no drop" after Holm's correction
    over the `tests` of a run or comparison of several tasks (None: only one was made, or none by
    such a rule). `cut` exists if answers of this run or of the reference were cut off. `budget`
    exists if a limit of the run left samples unasked; `evaluated` is None then too. `identity` is
    what the probes of the reference found (None: the plan does not accept identity).
    """

    task: str
    outcome: VerdictOutcome
    rule: str
    evaluated: float | None
    bounds: tuple[float, float] | None = None
    reference: float | None = None
    reference_interval: tuple[float, float] | None = None
    threshold: float | None = None
    theta: float | None = None
    alpha: float | None = None
    beta: float | None = None
    sigma: float | None = None
    num_samples: int | None = None
    protocol: str | None = None
    paired: PairedComparison | None = None
    early: EarlyStop | None = None
    acceptance: AcceptanceCheck | None = None
    other: OtherRule | None = None
    rule_named: bool = False
    p_holm: float | None = None
    tests: int | None = None
    cut: CutEffect | None = None
    budget: BudgetEnd | None = None
    identity: IdentityFinding | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def limit(self) -> float | None:
        """The threshold, if the rule compares the value with it, as those of users may."""
        return None if self.rule in OTHER_THRESHOLD else self.threshold

    @property
    def estimated(self) -> bool:
        """True if an early stop, or a limit of the run, left samples unasked."""
        return self.budget is not None or (self.early is not None and self.early.stopped)

    @property
    def estimate(self) -> float | None:
        """The value by the samples asked, if others were not (None: not known)."""
        if self.budget is not None:
            return self.budget.estimate
        return self.early.estimate if self.early is not None and self.early.stopped else None
