"""The reference of `serve-eval verify` whose probes a watch asks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.evaluation.probe_server import TOKENS
from serve_eval.evidence.probes.floor import DistanceLimits, check_floor, limits_of
from serve_eval.schema import Probe, VerificationReference
from serve_eval.storage.reports.story_results import read_reference

PER_ROUND = 20
"""Default number of probes of a round."""
_BYTES_PER_TOKEN, _TEMPLATE_TOKENS = 2, 32
"""Estimate for a probe whose tokens no server has counted."""
_SETTLING_TOKENS = 100
"""Tokens of the requests that find out how the endpoint can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
