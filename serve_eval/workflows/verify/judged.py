"""Ask one server the probes and judge it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from serve_eval.errors import EndpointError, NotComparableError
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence.probe_floor import (
    compare_siblings,
    keep_measured,
    limits_of,
    measure_distance,
    sibling_distances,
)
from serve_eval.evidence.probe_judging import ProbeEvidence, ServerFamily
from serve_eval.evidence.probe_sentences import count_needed, explain_outcome
from serve_eval.schema import (
    Probe,
    ProbeDistance,
    ProbeReading,
    VerificationReference,
    VerifiedSide,
)

REPEATS, REPEATED = 3, 3
"""Further answers to a probe that is far from the reference, and number of such probes."""
LEAST_CHANGED, CHANGED = 3, 0.3
"""Number and share of other answers to the same questions with which a server is given up that
reports no log-probabilities. A greedy server that gets every tenth request wrong stays below."""
MOST_UNANSWERED, LEAST_UNANSWERED = 0.1, 10
"""Share and number of probes without an answer with which a server is given up."""


class JudgedServer:
    """A server that is being judged: its evidence and what it was asked.

    `prompt_gaps` says by how many tokens it counts each prompt longer than the reference's server.
    A `thorough` verification calls it sound only after all probes of the budget.
    """

    def __init__(
        self, server: AskedServer, known: VerificationReference, evidence: ProbeEvidence
    ) -> None:
        self.server, self._known, self.evidence = server, known, evidence
        self._cached: int | None = None
        self.lost = False
        self.thorough = True
        self.prompt_gaps: list[int] = []

    def is_decided(self, probes: int, tokens: int | None) -> bool:
        """Return True if the outcome is clear, a budget is spent, or the server is lost."""
        if self.lost or (tokens is not None and self.server.tokens >= tokens):
            return True
        return self.evidence.is_settled(probes, thorough=self.thorough)

    def end(self, probes: Sequence[Probe]) -> None:
        """Note that no further probe is asked. The siblings answered all of `probes`."""
        self.evidence.ended = True
        self.evidence.healthy = keep_measured(sibling_distances(probes))

    async def ask(self, probes: Sequence[Probe]) -> bool:
        """Ask a round of probes, look at the evidence after each, and return True.

        Raises EndpointError if the server answers too few, and NotComparableError if its answers
        say nothing.
        """
        return await self.judge(
            probes, await self.server.read_all([probe.prompt for probe in probes])
        )

    async def judge(self, probes: Sequence[Probe], readings: Sequence[ProbeReading | None]) -> bool:
        """Look at the evidence after each of the server's answers. Raises as `ask` does."""
        if not self.server.lists and not self.evidence.tried:
            await self._check_steady(probes, readings)
        for probe, reading in zip(probes, readings, strict=True):
            if reading is None:
                self.evidence.unanswered += 1
                continue
            if reading.cached_tokens is not None:
                self._cached = (self._cached or 0) + reading.cached_tokens
            if reading.prompt_tokens and probe.reading.prompt_tokens:
                self.prompt_gaps.append(reading.prompt_tokens - probe.reading.prompt_tokens)
            if (distance := measure_distance(probe.id, probe.reading, reading)) is None:
                self.evidence.unanswered += 1
                continue
            distance = await self._repeat(probe, distance)
            self.evidence.add(
                msgspec.structs.replace(
                    distance,
                    prompt_tokens=probe.reading.prompt_tokens,
                    sibling_nats=compare_siblings(probe, distance),
                )
            )
        unanswered = self.server.unanswered
        if unanswered > max(LEAST_UNANSWERED, MOST_UNANSWERED * self.evidence.tried):
            raise EndpointError(
                f"{self.server.name}: {unanswered} of {self.evidence.tried} probes got no answer:"
                f" {self.server.why}"
            )
        return True

    async def _check_steady(
        self, probes: Sequence[Probe], readings: Sequence[ProbeReading | None]
    ) -> None:
        """Ask again, and raise NotComparableError if most answers are other ones.

        Only the texts of such a server can be compared, and those of one that samples say nothing.
        """
        again = await self.server.read_all([probe.prompt for probe in probes])
        pairs = [
            (one.text, other.text)
            for one, other in zip(readings, again, strict=True)
            if one is not None and other is not None
        ]
        changed = sum(one != other for one, other in pairs)
        if changed > max(LEAST_CHANGED, CHANGED * len(pairs)):
            raise NotComparableError(
                f"{self.server.name}: UNSUPPORTED: it reports no log-probabilities, and {changed}"
                f" of {len(pairs)} questions got another answer when asked again: it ignores the"
                " temperature of 0, or answers at random",
                hint="Let the server report logprobs, or measure it with serve-eval compare.",
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
            why=explain_outcome(evidence),
            asked=evidence.asked,
            unanswered=evidence.unanswered,
            beyond_noise=evidence.beyond_noise,
            beyond_floor=evidence.beyond_floor,
            far=evidence.far,
            further=evidence.paired.further,
            compared=evidence.paired.pairs,
            needed=count_needed(evidence),
            median=median,
            effect=median / unit if unit else None,
            evidence=evidence.highest_evidence,
            p_holm=evidence.p_holm,
            excluded_share=evidence.exclude_share(outcome),
            tokens=server.tokens,
            requests=server.requests,
            cached_tokens=self._cached,
            salted=server.salted,
            samples=server.samples,
            fingerprint=server.fingerprint,
            sampling_defaults=server.defaults,
            distances=tuple(evidence.distances),
        )


def judge_together(
    servers: Sequence[AskedServer], known: VerificationReference
) -> list[JudgedServer]:
    """Return servers to judge that share the level of the command."""
    family = ServerFamily(limits_of(known), len(servers))
    for one in family.members:
        one.paired.siblings = max([1, *(len(probe.healthy) for probe in known.probes)])
    return [
        JudgedServer(server, known, evidence)
        for server, evidence in zip(servers, family.members, strict=True)
    ]
