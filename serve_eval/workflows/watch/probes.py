"""Choose the probes of a round, and judge their distances from a reference."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.evaluation.probe_server import TOKENS
from serve_eval.evidence.probe_floor import (
    ALLOWED,
    ALLOWED_FAR,
    DistanceLimits,
    check_floor,
    limits_of,
)
from serve_eval.frozen import freeze
from serve_eval.schema import Probe, VerificationReference
from serve_eval.storage.story_results import read_reference
from serve_eval.workflows.watch.bets import NUMERICS, build_alarm, limit, weigh_spans
from serve_eval.workflows.watch.record import (
    ProbeCounts,
    Seen,
    SeenProbes,
    State,
    WatchAlarm,
    WatchedProbes,
)

_UNFIT, _UNSALTED = "unfit", "unsalted"


def choose_probes(state: State, most: int) -> list[int]:
    """Return the positions of at most `most` probes for the next round.

    Each cycle asks every probe once, in a random order of its own, in rounds of about equal size.
    """
    probes = state.probes
    assert probes is not None
    rng = random.Random(f"{state.seed}:probes:{probes.cycle}")
    left = rng.sample(range(probes.count), probes.count)[probes.place :]
    rounds = math.ceil(len(left) / most)
    return left[: math.ceil(len(left) / rounds)]


def judge_probes(state: State, seen: Seen) -> list[WatchAlarm]:
    """Count the probes of a round, and return an alarm if the evidence is sufficient.

    A probe without an answer counts as one that is as the reference: a failure is never evidence. A
    round in which none was answered does not count, and its probes are asked again.
    """
    probes, found = state.probes, seen.probes
    if probes is None or found is None:
        return []
    probes.settled, probes.salted = found.listed, found.salted
    if not found.measured:
        return []
    _count(probes, found)
    nats, counts = max(weigh_spans(state), key=lambda span: span[0])
    if nats < limit(state, NUMERICS):
        return []
    most = ALLOWED if counts.beyond else ALLOWED_FAR
    told = (
        "the endpoint is another model, precision or cache than the reference:"
        f" {counts.beyond} of {counts.tried} probes are beyond {found.limit:.3g} nat, where"
        f" {most:.0%} are allowed"
    )
    figures = {
        "probes": counts.tried,
        "beyond": counts.beyond,
        "far": counts.far,
        "beyond_nats": found.limit,
        "largest_nats": max(found.measured),
    }
    return [build_alarm(state, seen, NUMERICS, told, figures)]


def _count(probes: WatchedProbes, found: SeenProbes) -> None:
    """Add the probes of a round to those of its cycle."""
    if probes.place == 0:
        probes.cycles += 1
        probes.in_cycle = ProbeCounts()
    probes.rounds += 1
    probes.latest = ProbeCounts(tried=len(found.asked), beyond=found.beyond, far=found.far)
    probes.in_cycle = ProbeCounts(
        tried=probes.in_cycle.tried + len(found.asked),
        beyond=probes.in_cycle.beyond + found.beyond,
        far=probes.in_cycle.far + found.far,
    )
    probes.place += len(found.asked)
    if probes.place >= probes.count:
        probes.place = 0
        probes.cycle += 1


def forget_probes(probes: WatchedProbes) -> WatchedProbes:
    """Return the state of probes without evidence, at the beginning of a new cycle."""
    return WatchedProbes(
        count=probes.count,
        cycle=probes.cycle + 1,
        settled=probes.settled,
        salted=probes.salted,
        warned=probes.warned,
    )


def warn_once(state: State, seen: Seen, *, salted: bool) -> Iterator[str]:
    """Yield what keeps the probes from being asked as the reference was, once in a watch.

    `salted`: the reference was asked without the prefix cache.
    """
    probes, found = state.probes, seen.probes
    if probes is None or found is None:
        return
    texts = {
        _UNFIT: f"the probes cannot be asked as the reference was: {found.unfit}. The other sensors"
        " go on, and each round tries again"
        if found.unfit
        else "",
        _UNSALTED: "the endpoint refuses cache_salt, so each probe is asked twice, and half as many"
        " are asked: the prefix cache may change the last digits"
        if found.asked and salted and not found.salted
        else "",
    }
    for name, text in texts.items():
        if text and name not in probes.warned:
            probes.warned.append(name)
            yield f"warning: {text}"


PER_ROUND = 20
"""Default number of probes of a round."""
_BYTES_PER_TOKEN, _TEMPLATE_TOKENS = 2, 32
"""Estimate for a probe whose tokens no server has counted."""
_SETTLING_TOKENS = 100
"""Tokens of the requests that find out how the endpoint can be asked."""


@freeze
class WatchReference:
    """A reference, the digest of its file, and how many of its probes a round asks at most."""

    known: VerificationReference
    digest: str
    per_round: int

    @property
    def limits(self) -> DistanceLimits:
        """The limits of the distances. A healthy endpoint may be twice as far as the siblings."""
        return limits_of(self.known)

    @property
    def round_tokens(self) -> int:
        """The largest number of tokens of a round's probes, with the longest ones together."""
        sizes = sorted(map(self.count_tokens, self.known.probes), reverse=True)
        return sum(sizes[: self.per_round]) + _SETTLING_TOKENS

    def sum_tokens(self, positions: Sequence[int]) -> int:
        """Return the tokens of some probes."""
        probes = self.known.probes
        return sum(self.count_tokens(probes[i]) for i in positions) + _SETTLING_TOKENS

    def count_tokens(self, probe: Probe) -> int:
        """Return the tokens of a probe: those of the reference, or an upper estimate."""
        read = probe.reading.prompt_tokens
        if not read:
            read = len(probe.prompt.encode()) // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS
        return (read + TOKENS) * (1 if self.known.salted else 2)


def read_watch_reference(path: Path, per_round: int) -> WatchReference:
    """Return the reference in a file.

    Raises PlanError or NotComparableError for one that no alarm can be based on, and
    ReferenceFileError for a file that is none.
    """
    known = read_reference(path)
    if known.floor is None:
        raise PlanError(
            f"--verify-reference: {path} has no floor, so no probe can lie beyond it",
            hint="Register it again with --sibling HOST or --floor NATS.",
        )
    check_floor(known, f"--verify-reference: {path}")
    if not limits_of(known).known:
        raise PlanError(
            f"--verify-reference: the floor of {path} is unknown: its siblings answer as replicas"
            " do, which says nothing about healthy numerics",
            hint="Register it again with a --sibling on other hardware, or with --floor NATS.",
        )
    if not known.probes:
        raise PlanError(f"--verify-reference: {path} has no probes")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WatchReference(known=known, digest=digest, per_round=per_round)
