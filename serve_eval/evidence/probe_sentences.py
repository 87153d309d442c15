"""Say in one sentence why a server has its outcome, and what would decide an open one. Pure."""

from __future__ import annotations

import statistics

from serve_eval.evidence.probe_floor import ALLOWED, ALLOWED_FAR, LEAST_FLOOR, TIMES
from serve_eval.evidence.probe_judging import CLEAN, ProbeEvidence
from serve_eval.schema import VerificationOutcome

FOUR_BIT_NATS = 0.1
"""Median distance, in nats, above that of every healthy deployment that was measured (.027 at most,
and .089 with eight-bit weights and activations), and below that of four-bit weights (.20)."""
FAULT_SHARE = 0.1
"""Share of faulty requests for which the number of probes is named."""
DECIDES = (
    "a sibling on other hardware or with another batch size or engine version, several siblings, or"
    " an engine with noise of its own would decide"
)
"""The sentence about a floor that replicas cannot measure."""


def explain_outcome(found: ProbeEvidence) -> str:
    """Return the reason for the outcome in one sentence."""
    outcome = found.conclude()
    if outcome is VerificationOutcome.ANOTHER:
        return _explain_another(found)
    if outcome is VerificationOutcome.FAULT:
        return _explain_fault(found)
    if outcome is VerificationOutcome.IDENTICAL:
        return _explain_identical(found)
    if outcome is VerificationOutcome.OTHER_NUMERICS:
        return _explain_numerics(found)
    return _explain_undecided(found)


def _explain_another(found: ProbeEvidence) -> str:
    limits = found.limits
    if limits.measured and found.numbers:
        pairs = found.paired
        return (
            f"{pairs.further} of {pairs.pairs} probes are more than {TIMES:.0f} times as far away"
            f" as {_name_siblings(found)}, and so is the median; of a healthy server, at most 1 in"
            f" {pairs.siblings + 1} is"
        )
    if limits.measured:
        return _tell_alone(found)
    most = f"{ALLOWED:.0%}" if found.beyond_floor else f"{ALLOWED_FAR:.0%}"
    return (
        f"{found.beyond_floor} of {found.asked} probes differ by more than healthy numerics"
        f" ({limits.beyond_floor:.3g} nat); of a healthy server, at most {most} do"
    )


def _name_siblings(found: ProbeEvidence) -> str:
    return "the sibling" if found.paired.siblings == 1 else "each sibling"


def _tell_alone(found: ProbeEvidence) -> str:
    """Return at how many probes this server alone is far away, and at how many a sibling is."""
    pairs = found.paired
    return (
        f"at {pairs.far_alone} of {pairs.pairs} probes this server is far away and no sibling is,"
        f" and the reverse at {pairs.siblings_alone}"
    )


def _explain_fault(found: ProbeEvidence) -> str:
    again = len(found.returned)
    returns = f", and {again} of them did so each time they were asked again" if again else ""
    if found.found:
        return f"{_tell_alone(found)}{returns}: a fault of single requests"
    if found.limits.known and found.limits.measured:
        why = f"as none of {len(found.healthy)} answers of siblings"
    elif found.limits.known:
        why = "which the floor does not explain"
    else:
        why = "which no numerics explain"
    count = len(found.far_nats)
    return (
        f"{count} of {found.asked} probes {'differ' if count > 1 else 'differs'} by up to"
        f" {found.largest:.3g} nat, {why}{returns}: a fault of single requests"
    )


def _explain_identical(found: ProbeEvidence) -> str:
    if not found.beyond_noise:
        return f"none of {found.asked} probes differs by more than the server from itself"
    return (
        f"{found.beyond_noise} of {found.asked} probes differ by more than the server from"
        f" itself, by at most {found.largest:.3g} nat"
    )


def _explain_numerics(found: ProbeEvidence) -> str:
    if not found.numbers:
        return (
            f"{found.beyond_noise} of {found.asked} probes have another clear first token; the"
            " server lists no log-probabilities, so finer differences were not seen"
        )
    told = (
        f"{found.beyond_noise} of {found.asked} probes differ, by at most {found.largest:.3g} nat"
    )
    if found.limits.measured and found.paired.pairs:
        twice = f"at most {TIMES:.0f} times as far as {_name_siblings(found)}"
        told += f", {twice} as a rule" if found.far else f", {twice}"
        if found.far and found.paired.siblings_far:
            told += f"; {found.far} are far away, and {found.paired.siblings_far} of the siblings'"
        elif found.far:
            told += f"; {found.far} {'are' if found.far > 1 else 'is'} far away, too few to judge"
        return told
    if found.far:
        return (
            f"{told}; {found.far} beyond {found.limits.far:.3g} nat, which no numerics explain: too"
            " few to call it a fault of single requests"
        )
    return f"{told}: other kernels, batches or parallelism, within the floor that was given"


def _explain_undecided(found: ProbeEvidence) -> str:
    limits = found.limits
    if not limits.known and found.beyond_noise:
        told = (
            f"{_warn_of_size(found)}{found.beyond_noise} of {found.asked} probes differ, by at most"
            f" {found.largest:.3g} nat, and "
        )
        if limits.floor is None:
            return f"{told}no floor says how much healthy servers differ"
        return (
            f"{told}the floor is unknown: {_tell_replicas(found)}, as replicas do, which says"
            f" nothing about healthy numerics; {DECIDES}"
        )
    if found.lacks_answers:
        return (
            f"{len(found.far_nats)} of {found.asked} probes differ by up to {found.largest:.3g}"
            f" nat: a fault of single requests if none of {CLEAN} answers of siblings does;"
            f" {len(found.healthy)} are known"
        )
    if limits.known and found.is_odd:
        return (
            f"one of {found.asked} probes differs by {max(found.returned):.3g} nat each"
            " time it is asked, which healthy servers do not do: a second one would show a fault of"
            " single requests"
        )
    if limits.measured and found.paired.larger:
        pairs = found.paired
        return (
            f"the median is more than {TIMES:.0f} times that of {_name_siblings(found)}, and"
            f" {pairs.further} of {pairs.pairs} probes are so: too many for a sound server, too few"
            " for another one"
        )
    if not found.beyond_floor or limits.measured:
        return _explain_few(found)
    return (
        f"{found.beyond_floor} of {found.asked} probes differ by more than healthy numerics: too"
        " many for a sound server, too few for another one"
    )


def _tell_replicas(found: ProbeEvidence) -> str:
    floor = found.limits.floor or 0.0
    if floor < LEAST_FLOOR:
        return f"{_name_siblings(found)} differs by at most {floor:.2g} nat"
    return f"{_name_siblings(found)} answers most probes bit for bit alike"


def _explain_few(found: ProbeEvidence) -> str:
    unanswered = f", with {found.unanswered} unanswered," if found.unanswered else ""
    hits = found.beyond_floors if found.limits.measured else 0
    share = found.bound_share(hits)
    told = f"{found.beyond_floor} of" if found.beyond_floor else "none of"
    return (
        f"{told} {found.asked} probes {'differ' if found.beyond_floor else 'differs'} by more than"
        f" healthy numerics, but so few{unanswered} exclude only a share of {share:.0%} or more"
    )


def _warn_of_size(found: ProbeEvidence) -> str:
    """Return loud words if the distances are beyond those of healthy numerics, else none."""
    median = statistics.median([one.nats for one in found.distances])
    if not found.numbers or median <= FOUR_BIT_NATS:
        return ""
    return f"AS FAR APART AS FOUR-BIT WEIGHTS ARE ({median:.2g} nat in the median): "


def count_needed(found: ProbeEvidence) -> int | None:
    """Return the number of probes that show a fault in FAULT_SHARE of the requests.

    None if the probes so far are enough, or without siblings that measured the floor.
    """
    if not (found.limits.known and found.limits.measured and found.paired.siblings_far):
        return None
    needed = found.paired.count_needed(FAULT_SHARE)
    return needed if needed > found.asked else None
