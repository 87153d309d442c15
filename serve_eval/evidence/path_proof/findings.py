"""Find out for each claim whether the path was used, and add it to verdicts and warnings. Pure.

Precedence: a FAIL stays a FAIL, since a drop is evidence whatever the path was. PASS and NO
REFERENCE become INCONCLUSIVE, since they say nothing about a path that was not used. The other
outcomes stay. Each gets the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from serve_eval.evidence.engine_counters import SessionMeter
from serve_eval.evidence.path_proof.determinism import judge_determinism
from serve_eval.evidence.path_proof.facts import GENERATION, PathFacts
from serve_eval.evidence.path_proof.kv_transfer import judge_kv_transfer, list_unused
from serve_eval.evidence.path_proof.prefix_cache import judge_prefix_cache
from serve_eval.evidence.path_proof.speculation import judge_speculation
from serve_eval.evidence.path_proof.told import ClaimEvidence
from serve_eval.schema import (
    PathClaim,
    PathFinding,
    PathPromiser,
    Plan,
    ProofState,
    Verdict,
    VerdictOutcome,
)

JUDGES: Mapping[PathClaim, Callable[[PathFacts], ClaimEvidence]] = {
    PathClaim.KV_TRANSFER: judge_kv_transfer,
    PathClaim.PREFIX_CACHE: judge_prefix_cache,
    PathClaim.SPECULATION: judge_speculation,
    PathClaim.DETERMINISTIC: judge_determinism,
}
BECOMES_INCONCLUSIVE = (VerdictOutcome.PASS, VerdictOutcome.NO_REFERENCE)


def list_expected(
    named: Mapping[str, bool], launched: Iterable[str]
) -> dict[PathClaim, PathPromiser]:
    """Return who expects each claim. A plan takes back with False what the launcher expects."""
    promised = set(launched)
    found: dict[PathClaim, PathPromiser] = {
        claim: "launcher" for claim in PathClaim if claim in promised and named.get(claim, True)
    }
    return found | {PathClaim(name): "plan" for name, wanted in named.items() if wanted}


def foresee_path(plan: Plan, meter: SessionMeter | None) -> Iterator[str]:
    """Yield a warning before the first request if the counters that would prove a path are missing.

    `meter` has the servers that count.
    """
    if not plan.expect.get(PathClaim.KV_TRANSFER):
        return
    roles = {one.role for one in (() if meter is None else meter.servers)}
    if GENERATION not in roles:
        yield (
            "kv_transfer is expected, and no generation server shows its counters: unless answers"
            " name their servers, the result will be INCONCLUSIVE"
        )


def find_path(
    facts: PathFacts, expected: Mapping[PathClaim, PathPromiser]
) -> tuple[PathFinding, ...]:
    """Return a finding for each expected claim."""
    found = []
    for claim in PathClaim:
        if claim in expected:
            told = JUDGES[claim](facts)
            found.append(
                PathFinding(
                    claim=claim,
                    state=told.state,
                    evidence=told.evidence,
                    hint=told.hint,
                    expected_by=expected[claim],
                )
            )
    return tuple(found)


def warn_of_path(
    facts: PathFacts, found: Sequence[PathFinding], unwanted: Iterable[str]
) -> Iterator[str]:
    """Yield what looks wrong, and what the launcher promised and does not show.

    Nothing is said of the `unwanted` claims.
    """
    for one in found:
        if one.state is ProofState.UNKNOWN and one.expected_by == "launcher":
            yield (
                f"path: {one.claim}, which the launcher started, does not show from outside:"
                f" {one.evidence}. {one.hint}"
            )
    silent = {*unwanted, *(one.claim for one in found)}
    for claim in PathClaim:
        if claim not in silent and (claim is not PathClaim.PREFIX_CACHE or _may_look(facts)):
            told = JUDGES[claim](facts)
            if told.odd and (claim is not PathClaim.KV_TRANSFER or facts.disaggregated):
                yield f"path: {claim} is not expected, but it looks wrong: {told.evidence}"
    if PathClaim.KV_TRANSFER not in {*unwanted}:
        yield from list_unused(facts)


def _may_look(facts: PathFacts) -> bool:
    """Return True if an engine searched a prefix cache, before prompts are compared for it."""
    return any(one.prefix_cache_queries for one in facts.of_role())


def apply_path(verdict: Verdict, found: Iterable[PathFinding]) -> Verdict:
    """Return the verdict with the reasons of a path that is not proven."""
    reasons = tuple(one.reason for one in found if one.blocks)
    if not reasons:
        return verdict
    outcome = verdict.outcome
    if outcome in BECOMES_INCONCLUSIVE:
        outcome = VerdictOutcome.INCONCLUSIVE
    return replace(verdict, outcome=outcome, reasons=(*verdict.reasons, *reasons))
