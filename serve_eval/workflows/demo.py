"""Define the runs of the demo: one real model, intact and with coarsely rounded weights.

The model is the embedded one, a toy that solves word problems. Its reference ships with serve-eval.
No run declares that its weights were changed, just as a faulty deployment would not.
"""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.frozen import freeze_places
from serve_eval.schema import Plan, Spec
from serve_eval.verdicts.exit_code import FAIL, PASS

MODEL, TASK = "embedded", "word_problems"


@freeze_places
class Act:
    """A run of the demo: the name of its folder, a title, its plan and the expected exit code."""

    name: str
    title: str
    plan: Plan
    expected: int


def acts() -> Iterator[Act]:
    """Yield the runs in the order in which they are shown."""
    yield Act("bf16", "The model as trained. Expected: PASS.", _plan("none"), PASS)
    yield Act(
        "int8",
        "Weights rounded to 8 bits, which costs no accuracy. Expected: PASS.",
        _plan("int8"),
        PASS,
    )
    yield Act(
        "int3", "Weights rounded to 3 bits, which ruins it. Expected: FAIL.", _plan("int3"), FAIL
    )
    yield Act(
        "int4-g32",
        "Weights rounded to 4 bits in groups of 32: a few points lost, which show answer by answer."
        " Expected: FAIL.",
        _plan("int4-g32"),
        FAIL,
    )
    yield Act(
        "int4-g32-classic",
        "The same weights by TensorRT-LLM's test of the value alone, which cannot see so few points"
        " in 500 answers. Expected: PASS.",
        _plan("int4-g32", classic=True),
        PASS,
    )


def _plan(damage: str, *, classic: bool = False) -> Plan:
    return Plan(
        model=MODEL,
        launcher=Spec(name="embedded", options={"damage": damage}),
        tasks=(Spec(name=TASK),),
        rule_named=classic,
    )
