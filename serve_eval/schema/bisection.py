"""Types that describe the search for the option or the step that broke the accuracy."""

from __future__ import annotations

from enum import StrEnum

from serve_eval.frozen import freeze
from serve_eval.schema.result import ResultHeader


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
