"""Make the result of a verification, with what limits or decides its conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evaluation.run_session import Stopwatch
from serve_eval.evidence.probe_floor import (
    FAR_NATS,
    FLOORS,
    LEAST_FLOOR,
    TIMES,
    count_unmeasured,
    limits_of,
    sibling_distances,
)
from serve_eval.evidence.probe_judging import UNSOUND
from serve_eval.evidence.probe_sentences import DECIDES
from serve_eval.report.summary.figures import write_nats
from serve_eval.schema import (
    LostServer,
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.shell_words import quote_word
from serve_eval.verdicts.exit_code import (
    FAIL,
    INFRASTRUCTURE,
    PASS,
    UNDECIDED,
    WITHHELD,
    went_through,
)
from serve_eval.workflows.verify.fleet import list_names
from serve_eval.workflows.verify.legs import name_parts, warn_of_path
from serve_eval.workflows.verify.reference import PROBED, THOUGHTS
from serve_eval.workflows.verify.servers import VerifySession, judge_defaults, warn_of_unseen


def to_result(
    known: VerificationReference,
    sides: Sequence[VerifiedSide],
    name: str,
    clock: Stopwatch,
    servers: Sequence[AskedServer],
    session: VerifySession,
) -> Verification:
    """Return the result. `servers` are those that the reference was made with."""
    lost = session.lost
    sides = [judge_defaults(one, known, name) for one in sides]
    lengths = [p.reading.prompt_tokens for p in known.probes if p.reading.prompt_tokens] or [0]
    found = Verification(
        started_at=clock.started_at,
        wall_s=clock.wall_s,
        reference=name,
        model=known.model,
        noise=known.noise,
        step=known.step,
        floor=known.floor,
        sibling_median=known.median,
        floor_measured=known.measured,
        siblings=max((len(probe.healthy) for probe in known.probes), default=0),
        reference_requests=sum(one.requests for one in servers),
        reference_tokens=sum(one.tokens for one in servers),
        prompt_lengths=(min(lengths), max(lengths)),
        salted=known.salted,
        warnings=tuple(warn(known, sides)),
        sides=tuple(sides),
        named=tuple(name_parts(sides)),
        lost=tuple(lost),
        exit_code=choose_exit_code([one.outcome for one in sides if one.part_of is None], lost),
    )
    return _withhold(found) if session.stand_ins else found


def _withhold(found: Verification) -> Verification:
    """Return the result of a rehearsal without outcomes, which say nothing about a model."""
    sides = tuple(
        msgspec.structs.replace(side, outcome=VerificationOutcome.UNDECIDED, why=WITHHELD)
        for side in found.sides
    )
    code = went_through(found.exit_code)
    return replace(found, rehearsal=True, sides=sides, named=(), exit_code=code)


def choose_exit_code(
    outcomes: Sequence[VerificationOutcome], lost: Sequence[LostServer] = ()
) -> int:
    """Return 1 if any server is another one, has a fault or other defaults, else 4, 3 or 0.

    4: one is lost; 3: one is undecided.
    """
    if any(one in (*UNSOUND, VerificationOutcome.OTHER_DEFAULTS) for one in outcomes):
        return FAIL
    if lost:
        return INFRASTRUCTURE
    return UNDECIDED if VerificationOutcome.UNDECIDED in outcomes else PASS


def warn(known: VerificationReference, sides: Sequence[VerifiedSide]) -> list[str]:
    """Return a line for whatever limits the conclusions about some of the servers."""
    found = warn_of_effects(known, sides)
    if known.floor is None:
        found.append(
            "no floor is known, so nothing can be called another model: name a healthy sibling"
            " with --sibling HOST, or the floor with --floor NATS"
        )
    found += warn_of_floor(known)
    if differing := [one.name for one in sides if one.salted != known.salted]:
        found.append(
            f"{list_names(differing)}: asked {_state(not known.salted)}, and the reference"
            f" {_state(known.salted)}: the prefix cache may change the last digits"
        )
    if silent := [one for one in sides if one.unanswered]:
        found.append(
            f"{list_names([one.name for one in silent])}: {sum(one.unanswered for one in silent)}"
            " probes got no answer: they count as different where a share is excluded, and as no"
            " evidence that it is another model"
        )
    if sampling := [one.name for one in sides if one.samples]:
        found.append(
            f"{list_names(sampling)}: the temperature of 0 is ignored. Log-probabilities are still"
            " compared, second tokens only where the first are equal"
        )
    if known.protocol.get(PROBED) == THOUGHTS:
        found.append(
            "the tokens that were compared are the first of the model's thoughts, which hardly"
            " depend on a prompt: a fault in reading prompts or a small one may not show. Compare"
            " completions, with --set protocol.apply_chat_template=false, if the servers take them"
        )
    found += warn_of_unseen(known, sides)
    for one in sides:
        found += warn_of_path(one.name, one.engines)
    return found


def _state(salted: bool) -> str:
    return "without its prefix cache" if salted else "with it"


MOST_MEDIANS = 30
"""Medians of a sibling that its floor may have without a warning. 13 were measured."""
_SOUND = (VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS)


def warn_of_floor(known: VerificationReference) -> list[str]:
    """Return a line for whatever makes a floor doubtful."""
    found = []
    distances = list(sibling_distances(known.probes))
    if left := count_unmeasured(distances):
        found.append(
            f"{left} of the sibling's {len(distances)} answers are left out of the floor: without"
            " tokens, log-probabilities or the reference's token, they measure nothing"
        )
    if distances and known.floor is None:
        found.append("no answer of the sibling could be measured: name another one")
    if known.floor is not None and not limits_of(known).known:
        found.append(
            f"the floor is {_describe_floor(known.floor)}, so it is unknown, and no server can be"
            f" called another model: {DECIDES}"
        )
    if known.floor_given and known.floor is not None and known.floor < LEAST_FLOOR:
        found.append(
            f"the given floor of {write_nats(known.floor)} nat is small: with other kernels, sound"
            f" servers were measured beyond {LEAST_FLOOR} nat"
        )
    if known.floor is not None and _is_high(known.floor, known.median or 0.0):
        times = f", {known.floor / known.median:.0f} times the median" if known.median else ""
        found.append(
            f"the floor of {known.floor:.3g} nat is high{times}: smaller faults are not seen. Name"
            " a healthy sibling, or a smaller --floor"
        )
    return found


def _describe_floor(floor: float) -> str:
    if floor == 0.0:
        return "0: the sibling answered bit for bit alike, which measures no floor"
    if floor < LEAST_FLOOR:
        return f"{write_nats(floor)} nat, as that of replicas"
    return f"{write_nats(floor)} nat by single probes, with the others bit for bit alike"


def _is_high(floor: float, median: float) -> bool:
    """Return True for a floor that no numerics explain, or that few of a sibling's probes make."""
    return floor > FAR_NATS or floor > MOST_MEDIANS * median > 0


def warn_of_effects(known: VerificationReference, sides: Sequence[VerifiedSide]) -> list[str]:
    """Return a line for each server that is called sound, far beyond the sibling's typical."""
    limits = limits_of(known)
    return [
        f"{one.name}: its typical distance is {one.effect:.1f} times the sibling's, though the"
        " floor allows it: measure it with serve-eval compare, or give a smaller --floor"
        for one in sides
        if one.outcome in _SOUND
        and one.effect is not None
        and one.effect > TIMES
        and one.median > FLOORS * limits.beyond_noise
    ]


NAME_A_FLOOR = "name a sibling or a floor"


def lacks_floor(found: Verification) -> bool:
    """Return True if a server is undecided because no floor is known."""
    undecided = any(one.outcome is VerificationOutcome.UNDECIDED for one in found.sides)
    return undecided and found.floor is None and not found.rehearsal


def advise(
    found: Verification, undecided: Sequence[VerifiedSide], addresses: Mapping[str, str]
) -> str:
    """Return what decides about servers that are undecided.

    `addresses` are those with which a further command reaches the servers, by name. More probes
    are no help where the share beyond the floor is near the one that healthy servers may have, nor
    where the floor is unknown.
    """
    if found.floor is None:
        asked = quote_word(addresses.get(found.reference, "REFERENCE"))
        how = f"serve-eval verify {asked} --sibling HEALTHY --register floor.json"
        return f"a healthy sibling of another setting measures the floor: {how}"
    if not limits_of(found).known:
        return f"undecided, since the floor is unknown: {DECIDES}"
    if needed := max((one.needed or 0 for one in undecided), default=0):
        return f"undecided: about {needed:,} probes decide: --probes {needed}"
    if any(one.beyond_floor for one in undecided):
        return (
            "undecided: some answers lie beyond the floor, about as many as healthy servers may"
            " have, so more probes hardly decide: name a further --sibling, or measure the answers"
            " with serve-eval compare"
        )
    return (
        "undecided: more probes may decide: raise --probes, and register a reference in a file"
        " again with it"
    )
