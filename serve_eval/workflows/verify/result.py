"""Make the result of a verification, which a rehearsal withholds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evaluation.session_log import Stopwatch
from serve_eval.evidence.probes.judging import UNSOUND
from serve_eval.schema import (
    LostServer,
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.verdicts.exit_code import FAIL, INFRASTRUCTURE, PASS, UNDECIDED
from serve_eval.verdicts.rehearsed import WITHHELD, went_through
from serve_eval.workflows.verify.defaults import judge_defaults
from serve_eval.workflows.verify.legs import name_parts
from serve_eval.workflows.verify.remarks import warn
from serve_eval.workflows.verify.servers import VerifySession


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
