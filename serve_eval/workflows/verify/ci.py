"""Describe a verification for CI systems: a case for each server. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.schema import REHEARSED, Verification, VerificationOutcome, VerifiedSide
from serve_eval.workflows.verify.text import find_worst

_STATES = {
    VerificationOutcome.IDENTICAL: CiState.PASSED,
    VerificationOutcome.OTHER_NUMERICS: CiState.PASSED,
    VerificationOutcome.ANOTHER: CiState.FAILURE,
    VerificationOutcome.UNDECIDED: CiState.SKIPPED,
}
_COLUMNS = ("outcome", "server", "probes", "beyond the floor", "median, nat")


def describe_verification(found: Verification) -> CiResult:
    """Return the result of a verification."""
    wholes = [side for side in found.sides if side.part_of is None]
    return CiResult(
        notice=REHEARSED if found.rehearsal else "",
        title=f"serve-eval verify against {found.reference}",
        outcome=find_worst(found, wholes).value,
        suites=[
            CiSuite(name="serve-eval verify", cases=list(_list_cases(found)), seconds=found.wall_s)
        ],
        table=CiTable(
            columns=_COLUMNS,
            rows=[
                [
                    side.outcome.value,
                    side.name,
                    str(side.asked),
                    str(side.beyond_floor),
                    f"{side.median:.4f}",
                ]
                for side in found.sides
            ],
        ),
        notes=[*found.named, *(f"warning: {line}" for line in found.warnings)],
    )


def _list_cases(found: Verification) -> Iterator[CiCase]:
    yield from map(_describe_side, found.sides)
    for one in found.lost:
        yield CiCase(group="verify", name=one.name, state=CiState.ERROR, message=one.why)


def _describe_side(side: VerifiedSide) -> CiCase:
    return CiCase(
        group="verify",
        name=side.name,
        state=_STATES[side.outcome],
        message=f"{side.outcome.value}: {side.why}",
        details=side.prompts,
        properties={
            "outcome": side.outcome.value,
            "probes": str(side.asked),
            "beyond_floor": str(side.beyond_floor),
            "median_nats": f"{side.median:.6g}",
        },
    )
