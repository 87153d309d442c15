"""Documents of a bisection, by outcome."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import (
    Bisection,
    BisectionChange,
    BisectionResult,
    BisectionStep,
    BisectionSuspect,
    Plan,
    Spec,
)
from serve_eval.stats.noisy_search import space_of_options
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.document import make_document

WORSE, SAME = BisectionResult.WORSE, BisectionResult.SAME


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the user or a server wrote it."""
    changes = tuple(
        BisectionChange(name=name, options=(name,), good=text, bad="true")
        for name in ("damage", "strict_fields", "limits.concurrency")
    )
    plan = Plan(model=text, launcher=Spec(name="trtllm"), tasks=(Spec(name="word_problems"),))
    found = Configurations(space_of_options(len(changes), seed=0), changes, lambda _: plan)
    leading = {"leading": "damage", "difference": -33.4}
    steps = (
        _make_step(0, 0, BisectionResult.REFERENCE, posterior=0.2),
        _make_step(1, 7, WORSE, posterior=0.15, **leading),
        _make_step(2, 3, WORSE, posterior=0.307, **leading),
        _make_step(3, 1, WORSE, posterior=0.547, **leading),
        _make_step(4, 6, SAME, posterior=0.985, leading="damage", difference=0.4),
    )
    state = Bisection(
        schema_version=1,
        ordered=False,
        changes=changes,
        tasks=("word_problems",),
        samples=300,
        margin=16.7,
        alpha=0.005,
        confidence=0.95,
        steps=steps,
        suspects=(_suspect("together", "damage", posterior=0.985),),
        ending="found",
        exit_code=1,
        starts=4,
        requests=1071,
        gpu_hours=0.25,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=60.0,
    )
    undecided = replace(state, exit_code=3, suspects=(*state.suspects, _suspect("none")))
    lost = replace(steps[4], result=BisectionResult.NO_START, reason=text, difference=None)
    states = {
        "FAIL": state,
        "FAIL together": replace(
            state, suspects=(_suspect("together", "damage", "strict_fields", posterior=0.9999),)
        ),
        "FAIL either": replace(
            state, suspects=(_suspect("either", "damage", "strict_fields", posterior=0.96),)
        ),
        "PASS": replace(
            state, steps=(steps[0], replace(steps[1], result=SAME)), suspects=(_suspect("none"),),
            exit_code=0,
        ),
        "INCONCLUSIVE by the budget": replace(
            undecided, ending="budget", steps=(*steps[:4], lost), warnings=(text,)
        ),
        "INCONCLUSIVE unconfirmed": replace(undecided, ending="unconfirmed", margin=None),
        "INCONCLUSIVE weak": replace(undecided, ending="weak"),
        "INCONCLUSIVE exhausted": replace(undecided, ending="exhausted"),
        "INCONCLUSIVE outside": replace(
            undecided, suspects=(_suspect("outside"),), ending="found", gpu_hours=None
        ),
    }  # fmt: skip
    return {name: make_document(one, found, Path("outputs/bisect")) for name, one in states.items()}


def _make_step(number, configuration, result, **more):
    return BisectionStep(
        number=number,
        configuration=configuration,
        changes=(),
        folder=f"runs/{number:02d}",
        result=result,
        asked=300,
        starts=1,
        **more,
    )


def _suspect(kind, *members, posterior=0.96):
    return BisectionSuspect(
        kind=kind, members=members, posterior=posterior, text=" or ".join(members) or "no option"
    )
