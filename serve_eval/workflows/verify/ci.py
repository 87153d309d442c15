"""Describe a verification for CI systems: a case for each server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.nats import write_nats
from serve_eval.report.one_line import OneLine, lead
from serve_eval.schema import (
    REHEARSED,
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.workflows.verify.advice import NAME_A_FLOOR
from serve_eval.workflows.verify.text import find_worst, list_names, measure_floor

_STATES = {
    VerificationOutcome.IDENTICAL: CiState.PASSED,
    VerificationOutcome.OTHER_NUMERICS: CiState.PASSED,
    VerificationOutcome.ANOTHER: CiState.FAILURE,
    VerificationOutcome.FAULT: CiState.FAILURE,
    VerificationOutcome.OTHER_DEFAULTS: CiState.FAILURE,
    VerificationOutcome.UNDECIDED: CiState.SKIPPED,
}
_RANKS = (CiState.FAILURE, CiState.ERROR, CiState.SKIPPED, CiState.PASSED)
_COLUMNS = ("outcome", "server", "probes", "beyond the floor", "median, nat")


def describe_verification(found: Verification, addresses: Mapping[str, str]) -> CiResult:
    """Return the result of a verification. `addresses` are those of the servers, by name."""
    wholes = [side for side in found.sides if side.part_of is None]
    cases = list(_list_cases(found))
    ranks = [_RANKS.index(case.state) for case in cases]
    return CiResult(
        notice=REHEARSED if found.rehearsal else "",
        title=f"serve-eval verify against {found.reference}",
        outcome=find_worst(found, wholes).value,
        suites=[CiSuite(name="serve-eval verify", cases=cases, seconds=found.wall_s)],
        table=CiTable(
            columns=_COLUMNS,
            rows=[
                [
                    side.outcome.value,
                    side.name,
                    str(side.asked),
                    str(side.beyond_floor),
                    write_nats(side.median),
                ]
                for side in found.sides
            ],
        ),
        commands=measure_floor(found, addresses),
        notes=[
            *found.named,
            *(f"{len(group)} servers answer alike: {list_names(group)}" for group in found.groups),
            *(f"warning: {line}" for line in found.warnings),
        ],
        line=cases[min(range(len(cases)), key=lambda i: ranks[i])].line if cases else None,
    )


def describe_registered(made: VerificationReference) -> CiResult:
    """Return a new reference as the result of a command."""
    line = OneLine(
        outcome="REGISTERED",
        about=f"reference of {made.model} at {made.source}",
        counts=f"{len(made.probes)} probes",
    )
    case = CiCase(group="verify", name="register", state=CiState.PASSED, line=line)
    return CiResult(
        title="serve-eval verify --register",
        outcome=line.outcome,
        suites=[CiSuite(name="serve-eval verify", cases=[case])],
        table=CiTable(columns=(), rows=()),
        line=line,
    )


def _list_cases(found: Verification) -> Iterator[CiCase]:
    lines = [_make_line(found, side) for side in found.sides]
    lines += [
        OneLine(
            outcome="ERROR",
            about=f"verify {one.name}",
            figures="no result",
            cause=one.why,
            sure=True,
        )
        for one in found.lost
    ]
    states = [
        *(_STATES[side.outcome] for side in found.sides),
        *(CiState.ERROR for _ in found.lost),
    ]
    led = lead(lines, [_RANKS.index(state) for state in states], "servers")
    yield from map(_describe_side, found.sides, led)
    for one, line in zip(found.lost, led[len(found.sides) :], strict=True):
        yield CiCase(
            group="verify", name=one.name, state=CiState.ERROR, line=line, details=[one.why]
        )


def _make_line(found: Verification, side: VerifiedSide) -> OneLine:
    """Return the line about a server: how far its answers are from those of the reference."""
    sound = _STATES[side.outcome] is CiState.PASSED
    floor = "noise" if found.floor is None else "floor"
    limit = found.noise if found.floor is None else found.floor
    beyond = side.beyond_noise if found.floor is None else side.beyond_floor
    causes = [one for one in (*found.named, *side.prompts, side.why) if one]
    if side.outcome is VerificationOutcome.UNDECIDED and found.floor is None:
        causes = [": ".join(filter(None, [side.why, NAME_A_FLOOR]))]
    return OneLine(
        outcome=side.outcome.value,
        about=f"{side.name} against {found.reference}",
        figures=f"{beyond} of {side.asked} probes beyond the {floor} of {limit:.3g} nat, median"
        f" {side.median:.3g}",
        counts=f"{side.unanswered} unanswered",
        cause="" if sound or not causes else causes[0],
        sure=True,
    )


def _describe_side(side: VerifiedSide, line: OneLine) -> CiCase:
    return CiCase(
        group="verify",
        name=side.name,
        state=_STATES[side.outcome],
        line=line,
        details=[side.why, *side.prompts],
        properties={
            "outcome": side.outcome.value,
            "probes": str(side.asked),
            "beyond_floor": str(side.beyond_floor),
            "median_nats": f"{side.median:.6g}",
        },
    )
