"""Choose the configuration that a search tests next, from what its steps say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from serve_eval.frozen import freeze
from serve_eval.schema import Bisection, BisectionResult, BisectionStep, BisectionSuspect
from serve_eval.stats.noisy_search import (
    ErrorRates,
    Posterior,
    SearchCost,
    SimulatedSearch,
    start_chances,
)
from serve_eval.verdicts.exit_code import FAIL, PASS, UNDECIDED
from serve_eval.workflows.bisect.configurations import BisectRules, Configurations
from serve_eval.workflows.bisect.testing import StepOutcome

ALPHA = 0.005
"""Largest probability of each error of a test: "worse" of a configuration that lost less than the
margin, and "same" of one that lost more."""
CONFIDENCE = 0.95
"""Posterior that ends the search."""
SHOWN = 5
"""Number of hypotheses that the result lists."""
LEAST_SHOWN = 0.005
FOUND, BUDGET, EXHAUSTED, UNCONFIRMED, WEAK = (
    "found",
    "budget",
    "exhausted",
    "unconfirmed",
    "weak",
)
"""The reasons for the end of a search. Exhausted: no further configuration would tell enough.
Unconfirmed: the bad configuration is neither worse than the good one nor the same. Weak: the
latest tests decided nothing."""
MOST_UNDECIDED = 3
"""Number of tests in a row that may decide nothing: the drop is then too small for the prompts."""
_CULPRITS = ("together", "either", "from")
_ANSWERS = {BisectionResult.WORSE: True, BisectionResult.SAME: False}


def weigh(found: Configurations, steps: Sequence[BisectionStep]) -> Posterior:
    """Return the posterior after these steps."""
    posterior = Posterior(found.space, ErrorRates(alpha=ALPHA, beta=ALPHA))
    for step in steps:
        if step.result in _ANSWERS:
            posterior.update(step.configuration, worse=_ANSWERS[step.result])
    return posterior


def list_suspects(found: Configurations, posterior: Posterior) -> tuple[BisectionSuspect, ...]:
    """Return the most probable hypotheses, with the leading one first."""
    shares = posterior.probabilities
    order = sorted(range(len(shares)), key=lambda i: -shares[i])
    listed = [
        found.explain(found.space.suspects[i], float(shares[i]))
        for i in order[:SHOWN]
        if shares[i] >= LEAST_SHOWN
    ]
    return tuple(listed)


def tests_of(state: Bisection) -> list[BisectionStep]:
    """Return the steps without the first, which asked the good configuration."""
    return [step for step in state.steps if step.result is not BisectionResult.REFERENCE]


def choose(
    state: Bisection, found: Configurations, rules: BisectRules, key: str | None
) -> int | str:
    """Return the configuration to test next, or why the search ends.

    `key` is that of the server that is running.
    """
    tests = tests_of(state)
    if not tests:
        following: int | None = found.space.bad
    else:
        if tests[0].result is BisectionResult.UNDECIDED:
            return UNCONFIRMED
        posterior = weigh(found, tests)
        if posterior.leading[1] > CONFIDENCE:
            return FOUND
        if _is_weak(tests):
            return WEAK
        following = _follow(tests, found, posterior, key)
    if following is None:
        return EXHAUSTED
    needs_start = found.server_of(following) != key and found.good.launcher.name != "external"
    if _is_spent(state, rules, needs_start=needs_start):
        return BUDGET
    return following


def _follow(
    tests: Sequence[BisectionStep], found: Configurations, posterior: Posterior, key: str | None
) -> int | None:
    failed = [step.configuration for step in tests if step.result is BisectionResult.NO_START]
    tested = {step.configuration for step in tests}
    started = [0, *(tested - set(failed))]
    running = [one for one in found.space.configurations if key and found.server_of(one) == key]
    chances = start_chances(found.space, started, failed)
    return posterior.choose(
        tested=tested, chances=chances, running=[one for one in running if one not in tested]
    )


def _is_weak(tests: Sequence[BisectionStep]) -> bool:
    served = [step.result for step in tests if step.result is not BisectionResult.NO_START]
    latest = served[-MOST_UNDECIDED:]
    return latest == [BisectionResult.UNDECIDED] * MOST_UNDECIDED


def _is_spent(state: Bisection, rules: BisectRules, *, needs_start: bool) -> bool:
    if rules.budget_starts is not None and needs_start and state.starts >= rules.budget_starts:
        return True
    hours = rules.budget_gpu_hours
    return hours is not None and (state.gpu_hours or 0.0) >= hours


def begin_step(
    state: Bisection, found: Configurations, configuration: int, folder: str
) -> Bisection:
    """Return the state with a further step, whose result is not known yet."""
    step = BisectionStep(
        number=len(state.steps),
        configuration=configuration,
        changes=found.list_changed(configuration),
        folder=folder,
    )
    return replace(state, steps=(*state.steps, step))


def end_step(
    state: Bisection,
    found: Configurations,
    tested: StepOutcome,
    spend: Callable[[BisectionStep], BisectionStep],
) -> Bisection:
    """Return the state with the result of its last step, and the posterior after it.

    The test of the bad configuration also sets the task that the later steps ask, and the margin if
    none was given.
    """
    *before, last = state.steps
    last = spend(
        replace(
            last,
            result=tested.result,
            asked=tested.asked,
            difference=tested.difference,
            reason=tested.reason,
        )
    )
    if not tests_of(replace(state, steps=tuple(before))):
        margin = tested.margin if state.margin is None else state.margin
        tasks = state.tasks if tested.task is None else (tested.task,)
        state = replace(state, tasks=tasks, margin=margin)
    posterior = weigh(found, [*before, last])
    suspects = list_suspects(found, posterior)
    last = replace(last, leading=suspects[0].text, posterior=suspects[0].posterior)
    return replace(
        state,
        steps=(*before, last),
        suspects=suspects,
        requests=sum(step.asked for step in (*before, last)),
    )


def end_search(state: Bisection, ending: str) -> Bisection:
    """Return the state with the end of the search and its exit code."""
    code = UNDECIDED
    if ending == FOUND:
        kind = state.suspects[0].kind
        code = FAIL if kind in _CULPRITS else PASS if kind == "none" else UNDECIDED
    return replace(state, ending=ending, exit_code=code)


@freeze
class BisectionPreview:
    """The first three tests, and the cost of a search in which the bad configuration fails.

    `if_worse` and `if_same` are the third configuration after each result of the second one (None:
    the search ends).
    """

    changes: tuple[tuple[str, str, str], ...]
    first: str
    second: str | None
    if_worse: str | None
    if_same: str | None
    cost: SearchCost

    @property
    def content(self) -> dict[str, Any]:
        """The preview as JSON values; every start counts, that of the good one included."""
        return {
            "changes": [
                {"name": name, "good": good, "bad": bad} for name, good, bad in self.changes
            ],
            "steps": [self.first, self.second, {"worse": self.if_worse, "same": self.if_same}],
            "starts": {
                "mean": round(self.cost.mean + 1, 1),
                "most": self.cost.most + 1,
                "if_the_bad_one_is_not_worse": 2,
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the preview as text."""
        for name, good, bad in self.changes:
            yield f"  {name}: {good} -> {bad}"
        yield f"step 1: {self.first}"
        yield f"step 2, if step 1 is worse: {self.second or 'none'}"
        yield f"step 3, if step 2 is worse: {self.if_worse or 'none'}"
        yield f"step 3, if step 2 is the same: {self.if_same or 'none'}"
        mean, most = self.cost.mean + 1, self.cost.most + 1
        yield (
            f"server starts: {mean:.1f} expected if step 1 is worse ({most} in 19 of 20 searches),"
            " else 2"
        )


def preview(found: Configurations) -> BisectionPreview:
    """Return the first steps and the expected number of starts, each of them a new server."""
    search = SimulatedSearch(found.space, ErrorRates(alpha=ALPHA, beta=ALPHA), CONFIDENCE)
    bad = found.space.bad
    second = search.choose(((bad, True),))
    third = [
        None if second is None else search.choose(((bad, True), (second, worse)))
        for worse in (True, False)
    ]

    def say(configuration: int | None) -> str | None:
        return None if configuration is None else found.describe(configuration)

    return BisectionPreview(
        changes=tuple((one.name, one.good, one.bad) for one in found.changes),
        first=found.last,
        second=say(second),
        if_worse=say(third[0]),
        if_same=say(third[1]),
        cost=search.measure(),
    )
