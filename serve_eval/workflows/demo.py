"""The demo: the main job on a real model, sound and with its weights rounded to fewer and fewer
bits.

The model is the embedded one, a toy that solves word problems. Its reference ships with serve-eval;
none of the runs declares that anything was done to the weights, as a deployment that went wrong
would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from serve_eval.schema import Plan, Spec
from serve_eval.verdicts.exit_code import FAIL, PASS

MODEL, TASK = "embedded", "word_problems"


@dataclass(frozen=True, slots=True)
class Act:
    """A run of the demo: the name of its folder, what it shows, and the exit code that is
    expected.
    """

    name: str
    title: str
    plan: Plan
    expected: int


def acts() -> Iterator[Act]:
    """The runs, in the order in which they are shown."""
    yield Act("bf16", "The model as it was trained. Expected: PASS.", _plan("none"), PASS)
    yield Act(
        "int8",
        "Its weights rounded to 8 bits, which costs nothing. Expected: PASS.",
        _plan("int8"),
        PASS,
    )
    yield Act("int3", "Rounded to 3 bits, which ruins it. Expected: FAIL.", _plan("int3"), FAIL)
    yield Act(
        "int4-g32",
        "Rounded to 4 bits in groups of 32: a few points, too few for the classic test of 500"
        " answers. Expected: PASS.",
        _plan("int4-g32"),
        PASS,
    )
    yield Act(
        "int4-g32-paired",
        "The same, compared with the reference answer by answer. Expected: FAIL.",
        _plan("int4-g32", verdict="paired"),
        FAIL,
    )


def _plan(damage: str, verdict: str = "classic") -> Plan:
    return Plan(
        model=MODEL,
        launcher=Spec(name="embedded", options={"damage": damage}),
        tasks=(Spec(name=TASK),),
        verdict=Spec(name=verdict),
    )
