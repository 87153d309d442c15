"""Types that describe a suite of runs with its verdict, and a bisection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import date
from enum import StrEnum
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.schema.event import RunError
from serve_eval.schema.plan import Plan
from serve_eval.schema.result import ResultHeader
from serve_eval.schema.traffic import RunCost
from serve_eval.schema.verdict import OtherRule, VerdictOutcome

Scalar = str | int | float | bool


@freeze
class SuiteRun:
    """One plan of a suite.

    `name` is also the name of its folder. `attributes` are the user's own words about it, such as
    size or quantisation; `notes` say which parts of its case files are not asked. `task_label` is
    the part of `name` that says only which tasks it asks. None of them decides anything.
    """

    name: str
    plan: Plan
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    task_label: str = ""


@freeze
class Waiver:
    """A known FAIL that does not fail its suite until the end of the day `until` (UTC).

    `match` selects runs and tasks: see serve_eval.workflows.suite.suite_form.
    """

    match: Mapping[str, object]
    reason: str
    until: date


@freeze
class Suite:
    """Runs that give one verdict together, in the order in which they are shown.

    `end_when_certain`: nothing more is asked once a FAIL is certain. `max_tokens_total` and
    `max_time_s` are the tokens, and the seconds of asking, that all runs may cost together.
    """

    name: str
    runs: tuple[SuiteRun, ...]
    waivers: tuple[Waiver, ...] = ()
    end_when_certain: bool = False
    max_tokens_total: int | None = None
    max_time_s: float | None = None


@freeze
class SuiteRow:
    """One task of one run, judged within the whole suite.

    Values, intervals (95 %), bounds, reference and threshold are in points, or with `in_points`
    False in the unit of the task's metric. `estimate` replaces the value after an early stop. `own`
    is the outcome of the run alone, `outcome` the one after the correction for many tests. `p` is
    that of the paired comparison; `p_holm` is its correction over `tests` tests of the suite: those
    of the paired and the anchors rule for their rows, all for others. `finding` is the paired one
    after the correction. `difference` is the mean of the pairs with its 95 % interval, if the
    reference has scores of single samples; `margin` the drop that matters to the pairs; `p_rise`
    the p of "no rise". `proven` is the direction of a change that is proven after the correction,
    and `proven_p` its corrected p; the rule may pass a drop for all that. `waiver` is the one that
    keeps this row from failing the suite. The first answers to `repaired` samples are unknown.
    `unasked` samples were not asked (None: none of the run was), so that the test of the row counts
    in the correction without its p. A proof needs a p of at most `alpha` after the correction.
    `other` is what the rule that did not judge says.
    """

    run: str
    task: str
    model: str | None
    attributes: Mapping[str, Scalar]
    rule: str
    own: VerdictOutcome
    outcome: VerdictOutcome
    failed: int = 0
    repaired: int = 0
    other: OtherRule | None = None
    evaluated: float | None = None
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    reference: float | None = None
    reference_interval: tuple[float, float] | None = None
    threshold: float | None = None
    in_points: bool = True
    higher_is_better: bool = True
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    p: float | None = None
    p_holm: float | None = None
    tests: int | None = None
    q_bh: float | None = None
    finding: str | None = None
    p_rise: float | None = None
    margin: float | None = None
    default_margin: bool = True
    proven: Literal["", "drop", "rise"] = ""
    proven_p: float | None = None
    waiver: Waiver | None = None
    unasked: int | None = 0
    alpha: float | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class WaiverState(StrEnum):
    """The state of a waiver.

    APPLIED: it kept a FAIL from counting. EXPIRED: its day is over. NOT_NEEDED: what it names
    passes. UNDECIDED: what it names was not decided. NO_MATCH: it names nothing of the suite.
    """

    APPLIED = "applied"
    EXPIRED = "expired"
    NOT_NEEDED = "not needed"
    UNDECIDED = "undecided"
    NO_MATCH = "no match"


@freeze
class WaiverUse:
    """A waiver with its state and the failing rows that it names, as `run/task`."""

    waiver: Waiver
    state: WaiverState
    failing: tuple[str, ...]


@freeze
class SuiteRunReport:
    """The end of one run of a suite.

    `folder` is relative to the suite's; `kept`: its report existed already. `not_asked` says why
    nothing of it was asked ("": it was).
    """

    name: str
    attributes: Mapping[str, Scalar]
    folder: str
    kept: bool
    error: RunError | None
    warnings: tuple[str, ...] = ()
    not_asked: str = ""


@freeze
class SuiteChanges:
    """The rows, as `run/task`, that are not as in an earlier report of the suite.

    `report_of` is when that one began. `changed` has what is different, such as "PASS to FAIL".
    """

    report_of: str
    new: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


@freeze
class SuiteReport(ResultHeader):
    """The report of a suite, as stored in suite_report.json.

    `alpha` is the chance of any false alarm among the paired gates together; `verdict` is the exit
    code as a word. `changes` are those since the last report of the folder (None: there is none, or
    nothing changed). `cost` is what all runs cost together (None: not known).
    """

    name: str
    verdict: str
    alpha: float
    runs: tuple[SuiteRunReport, ...]
    rows: tuple[SuiteRow, ...]
    waivers: tuple[WaiverUse, ...]
    changes: SuiteChanges | None = None
    cost: RunCost | None = None


class BisectionResult(StrEnum):
    """The result of a configuration.

    REFERENCE: it is the good one, which was asked first. WORSE: a drop beyond the margin is shown.
    SAME: such a drop is excluded. UNDECIDED: neither. NO_START: it cannot start or serve.
    """

    REFERENCE = "reference"
    WORSE = "worse"
    SAME = "same"
    UNDECIDED = "undecided"
    NO_START = "cannot start"


@freeze
class BisectionChange:
    """Options that change together, with their values on the good and on the bad side as text."""

    name: str
    options: tuple[str, ...]
    good: str
    bad: str


@freeze
class BisectionStep:
    """One configuration of the search, in the order of the tests.

    `configuration` is its number in the search space and `changes` are the names of what has the
    value of the bad side, or the step. `result` is None while it is tested. `asked` counts answers,
    `starts` the servers that were started for it, `gpu_s` their GPU seconds (None: not known).
    `difference` is that of the task that fell most, in points, estimated after an early stop.
    `leading` is the hypothesis that leads after this step, with its `posterior`. `reason` explains
    a configuration that is undecided or cannot start.
    """

    number: int
    configuration: int
    changes: tuple[str, ...]
    folder: str
    result: BisectionResult | None = None
    asked: int = 0
    starts: int = 0
    gpu_s: float | None = None
    difference: float | None = None
    leading: str = ""
    posterior: float | None = None
    reason: str = ""


@freeze
class BisectionSuspect:
    """A hypothesis with its posterior.

    `kind` is together (its members fail only together), either (each of them fails alone), from (a
    step), none (nothing fails), outside (everything fails) or other (no rule).
    """

    kind: str
    members: tuple[str, ...]
    posterior: float
    text: str


@freeze
class Bisection(ResultHeader):
    """A search and what it found, as stored in bisection.json.

    `ordered`: the changes are steps in a row. `tasks` are those that the later steps ask. `margin`
    is the drop in points that counts as worse (None: not known yet), `alpha` bounds both error
    rates of a step, `confidence` is the posterior that ends the search. `suspects` are the most
    probable hypotheses. `ending` is why the search ended: found, budget, exhausted, unconfirmed or
    weak (None: it goes on). `gpu_hours` is None if the launcher does not know its GPUs.
    """

    ordered: bool
    changes: tuple[BisectionChange, ...]
    tasks: tuple[str, ...]
    samples: int
    margin: float | None
    alpha: float
    confidence: float
    steps: tuple[BisectionStep, ...] = ()
    suspects: tuple[BisectionSuspect, ...] = ()
    ending: str | None = None
    starts: int = 0
    requests: int = 0
    gpu_hours: float | None = None
    warnings: tuple[str, ...] = ()
