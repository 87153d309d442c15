"""Hold the judgement of one task, and the comparisons behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorComparison:
    """The test of a drop among the anchors, the prompts that every reference run but the last had
    right.

    `reference_lost` of the `anchors` prompts are those that the last reference run, which did not
    choose them, had wrong, `candidate_lost` those of the candidate's first run. `p` is that of "no
    drop"; `p_range` holds it with every missing answer at its best and at its worst.
    """

    anchors: int
    reference_lost: int
    candidate_lost: int
    p: float | None
    p_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The same prompts, answered by the runs of a reference and by this one. In points; negative is
    worse.

    `difference` is the mean over the complete pairs, `p` that of "no drop"; a drop beyond `lower`
    is excluded at 1 - `alpha` (None: none is). `down` and `up` count right turned wrong and wrong
    turned right against the reference's first run, where answers are right or wrong. `margin` is
    the drop that matters. `finding` is PASS, SMALL_DROP (proven, and excluded from reaching the
    margin), FAIL or INCONCLUSIVE, with its reasons.

    `cochran_q` with its `cochran_p` tests whether the runs of a side differ as a whole (None: no
    side has several); `inflation` is the factor on every standard error that follows, 1 where they
    do not. `anchors` is a test of its own.
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


class VerdictOutcome(StrEnum):
    """What is said of a task in the end."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_REFERENCE = "NO REFERENCE"
    NOT_JUDGED = "INTEGRATION TEST"
    UNSUPPORTED = "UNSUPPORTED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Whether an endpoint does what is needed, as a probe found it: `works` (None: not found out,
    and the task is asked), what was `seen`, and what would help where it does not.
    """

    need: str
    works: bool | None
    seen: str
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """How far a task came that may stop early.

    When it was `stopped` under the classic `rule`, its verdict equals that of all `planned` samples
    except with probability `eps` at most. Under a paired rule a drop of `margin` points was
    excluded or shown with an error of `alpha` at most, which is what the looks may spend of the
    task's alpha, and too many answers would have been missing with probability `eps` at most.

    Decided on the first `looked_at` samples of a random order (`order_seed`), of which `missing`
    have no answer; `estimate` is the mean of the others in points, and partial. `paired`: the
    reference's scores per sample were known, and not only their mean. `saved` samples have no
    result and need none; the requests of a few of them were in flight. The wealths of the bets are
    natural logarithms (None: without bound): 2 / `eps` decides, or 1 / `alpha`, once that for few
    missing answers has reached 1 / `eps`. `held` is how often a decision was put off because the
    latest answers looked worse than those before.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCheck:
    """Whether speculative decoding still saves steps: the `length` (tokens per step) against the
    least that passes.

    `test` is the entry of acceptance_length.yaml, with its `reference` and `least`. `length` is
    None, and so is `passed`, where too few answers tell it.
    """

    test: str
    reference: float
    least: float
    length: float | None
    passed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one task. Values, bounds, reference, threshold, theta and sigma are in
    points.

    `num_samples` is the n of the formula: the registered one for a full run, the number asked under
    `--limit`. `protocol` says what the reference is known to have been taken under. `paired` is
    there when the reference has scores per sample, whatever the rule, and `early` when the run may
    stop early. `evaluated` is None when it did. `acceptance` is there when the acceptance length is
    judged too: the outcome is that of both, and where that one fails, `rule` names it.
    """

    task: str
    outcome: VerdictOutcome
    rule: str
    evaluated: float | None
    bounds: tuple[float, float] | None = None
    reference: float | None = None
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
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
