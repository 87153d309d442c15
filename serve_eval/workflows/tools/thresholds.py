"""Accuse by thresholds: the share of answers with an error that a server may have at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from serve_eval.scorers._call_faults import OF_SERVER, POINTS_TO, CallFault
from serve_eval.stats.binomial import binomial_tail
from serve_eval.stats.multiplicity import holm
from serve_eval.workflows.tools.answers import CheckedAnswer, ToolPass

THRESHOLDS: Mapping[str, float] = {
    CallFault.MARKUP: 0.01,
    CallFault.BROKEN_TEXT: 0.005,
    CallFault.INVALID_JSON: 0.02,
    CallFault.UNKNOWN_NAME: 0.02,
    CallFault.SCHEMA: 0.10,
    CallFault.MISSED: 0.20,
    CallFault.UNWANTED: 0.20,
    CallFault.EMPTY: 0.05,
    CallFault.VALUES: 0.20,
}
"""Largest share of answers with an error that a model may make, over all kinds of requests."""
ENFORCED_SHARE = 0.02
"""Largest share of answers that break what the server must enforce, whatever the model says."""
_CHOICE = (CallFault.MISSED, CallFault.UNWANTED, CallFault.UNKNOWN_NAME)
_FORM = (CallFault.INVALID_JSON, CallFault.SCHEMA, CallFault.UNWANTED)
ENFORCED: Mapping[str, tuple[CallFault, ...]] = {
    "required": _CHOICE,
    "none": _CHOICE,
    "named": _CHOICE,
    **dict.fromkeys(
        ("json_object", "json_schema", "json_trtllm", "regex", "ebnf", "structural_tag"), _FORM
    ),
}
"""The part of a request that the server must enforce, by kind of request."""


class ThresholdTest(NamedTuple):
    """The errors of one kind in one pass. Without a `p`, one error is enough."""

    name: str
    cell: str
    errors: int
    scored: int
    p: float | None
    examples: tuple[tuple[str, str], ...]


def accuse_by_thresholds(
    passes: Sequence[ToolPass], limits: Mapping[str, float], alpha: float
) -> list[tuple[ThresholdTest, float | None]]:
    """Return the tests that accuse, with their corrected p-values."""
    tests = [test for one in passes for test in _test_pass(one, {**THRESHOLDS, **limits})]
    certain = [(test, None) for test in tests if test.p is None and test.errors]
    open_ones = [test for test in tests if test.p is not None]
    corrected = holm([test.p or 0.0 for test in open_ones])
    proved = [(test, p) for test, p in zip(open_ones, corrected, strict=True) if p <= alpha]
    return [*certain, *proved]


def _test_pass(one: ToolPass, limits: Mapping[str, float]) -> Iterator[ThresholdTest]:
    everything = dict(one.answers)
    for fault in (*OF_SERVER, *limits):
        limit = None if fault in OF_SERVER and fault not in limits else limits[fault]
        name = CallFault(fault).value
        yield _test(one, name, everything, (CallFault(fault),), limit)
    for kind, faults in ENFORCED.items():
        here = {prompt: a for prompt, a in everything.items() if a.kind == kind}
        if here:
            yield _test(one, f"{kind} not enforced", here, faults, ENFORCED_SHARE)


def _test(
    one: ToolPass,
    name: str,
    answers: Mapping[str, CheckedAnswer],
    faults: tuple[CallFault, ...],
    limit: float | None,
) -> ThresholdTest:
    bad = [prompt for prompt, a in answers.items() if set(faults) & set(a.faults)]
    p = None if limit is None else binomial_tail(len(bad), len(answers), limit)
    examples = tuple((prompt, answers[prompt].said) for prompt in bad[:2])
    return ThresholdTest(name, one.name, len(bad), len(answers), p, examples)


def point_to(name: str) -> str:
    """Return the part of a server that an error, or a field that is not enforced, points to."""
    kind = name.removesuffix(" not enforced")
    if kind in ENFORCED:
        where = "tool_choice" if ENFORCED[kind] is _CHOICE else "guided decoding"
        return f"{where}: the server accepts the field and does not apply it"
    return POINTS_TO[CallFault(name)]
