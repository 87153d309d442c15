"""Ask one server the probes and judge it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from serve_eval.errors import EndpointError
from serve_eval.schema import (
    Probe,
    ProbeDistance,
    ProbeReading,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.workflows.verify.asking import AskedServer
from serve_eval.workflows.verify.distance import measure_distance
from serve_eval.workflows.verify.evidence import DistanceLimits, ProbeEvidence, ServerFamily

REPEATS, REPEATED = 3, 3
"""Further answers to a probe that is far from the reference, and number of such probes."""
MOST_UNANSWERED, LEAST_UNANSWERED = 0.1, 10
"""Share and number of probes without an answer with which a server is given up."""


class JudgedServer:
    """A server that is being judged: its evidence and what it was asked."""

    def __init__(
        self, server: AskedServer, known: VerificationReference, evidence: ProbeEvidence
    ) -> None:
        self.server, self._known, self.evidence = server, known, evidence
        self._cached: int | None = None

    def is_decided(self, budget: int) -> bool:
        """Return True if the outcome is clear or the budget of probes is spent."""
        evidence = self.evidence
        return evidence.conclude() is not VerificationOutcome.UNDECIDED or evidence.tried >= budget

    async def ask(self, probes: Sequence[Probe]) -> None:
        """Ask a round of probes, and look at the evidence after each.

        Raises EndpointError if the server answers too few.
        """
        await self.judge(probes, await self.server.read_all([probe.prompt for probe in probes]))

    async def judge(self, probes: Sequence[Probe], readings: Sequence[ProbeReading | None]) -> None:
        """Look at the evidence after each of the server's answers. Raises as `ask` does."""
        for probe, reading in zip(probes, readings, strict=True):
            self.evidence.tried += 1
            if reading is None:
                continue
            if reading.cached_tokens is not None:
                self._cached = (self._cached or 0) + reading.cached_tokens
            if (distance := measure_distance(probe.id, probe.reading, reading)) is not None:
                self.evidence.add(await self._repeat(probe, distance))
        unanswered = self.server.unanswered
        if unanswered > max(LEAST_UNANSWERED, MOST_UNANSWERED * self.evidence.tried):
            raise EndpointError(
                f"{self.server.name}: {unanswered} of {self.evidence.tried} probes got no answer:"
                f" {self.server.why}"
            )

    async def _repeat(self, probe: Probe, distance: ProbeDistance) -> ProbeDistance:
        """Ask a probe again whose answer is far from the reference's."""
        if distance.nats <= self.evidence.limits.far or self.evidence.far >= REPEATED:
            return distance
        more = await self.server.read_all([probe.prompt] * REPEATS)
        measured = [
            measure_distance(probe.id, probe.reading, one) for one in more if one is not None
        ]
        repeats = tuple(one.nats for one in measured if one is not None)
        return msgspec.structs.replace(distance, repeats=repeats)

    def result(self, *, part_of: str | None = None, role: str | None = None) -> VerifiedSide:
        """Return the conclusion and the figures behind it. See VerifiedSide for the arguments."""
        evidence, server = self.evidence, self.server
        outcome = evidence.conclude()
        nats = [one.nats for one in evidence.distances]
        median = statistics.median(nats) if nats else 0.0
        unit = self._known.median
        return VerifiedSide(
            name=server.name,
            url=server.client.endpoint.base_url,
            part_of=part_of,
            role=role,
            outcome=outcome,
            why=evidence.explain(),
            asked=evidence.asked,
            unanswered=evidence.tried - evidence.asked,
            beyond_noise=evidence.beyond_noise,
            beyond_floor=evidence.beyond_floor,
            far=evidence.far,
            median=median,
            effect=median / unit if unit else None,
            evidence=evidence.highest_evidence,
            p_holm=evidence.p_holm,
            excluded_share=evidence.exclude_share(outcome),
            tokens=server.tokens,
            requests=server.requests,
            cached_tokens=self._cached,
            salted=server.salted,
            fingerprint=server.fingerprint,
            distances=tuple(evidence.distances),
        )


def judge_together(
    servers: Sequence[AskedServer], known: VerificationReference
) -> list[JudgedServer]:
    """Return servers to judge that share the level of the command."""
    limits = DistanceLimits(noise=known.noise, step=known.step, floor=known.floor)
    family = ServerFamily(limits, len(servers))
    return [
        JudgedServer(server, known, evidence)
        for server, evidence in zip(servers, family.members, strict=True)
    ]
