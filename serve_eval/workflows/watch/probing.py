"""Ask the probes of a round in the way in which the reference was asked."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.client.client import Client
from serve_eval.evaluation.probe_server import FIRST, AskedServer, Unreadable
from serve_eval.evidence.probes.floor import measure_distance
from serve_eval.schema import Probe, ProbeReading
from serve_eval.workflows.watch import pool
from serve_eval.workflows.watch.job import WatchSession
from serve_eval.workflows.watch.numerics import choose_probes
from serve_eval.workflows.watch.record import Seen, SeenProbes
from serve_eval.workflows.watch.reference import WatchReference


def plan_probes(session: WatchSession) -> int:
    """Return the tokens that the probes of the next round take at most; 0 without a reference."""
    reference = session.job.reference
    if reference is None:
        return 0
    return reference.sum_tokens(choose_probes(session.state, reference.per_round))


async def ask_probes(session: WatchSession, client: Client, seen: Seen) -> None:
    """Ask the probes of a round, and record their distances.

    None is asked if no question was answered: then the endpoint is down.
    """
    reference, probes = session.job.reference, session.state.probes
    if reference is None or probes is None:
        return
    found = seen.probes = SeenProbes(limit=reference.limits.beyond_floor)
    if seen.asked and not seen.came:
        return
    server = AskedServer(
        name=session.job.base_url,
        client=client,
        in_flight=pool.IN_FLIGHT,
        route=reference.known.route,
        salted=probes.salted and reference.known.salted,
        attempts=1,
    )
    if not probes.settled or server.salted is not reference.known.salted:
        found.unfit = await _settle(server, reference)
    if not found.unfit:
        # Without salts each probe is asked twice, which the budget does not expect.
        doubled = reference.known.salted and not server.salted
        most = max(1, reference.per_round // 2) if doubled else reference.per_round
        asked = [reference.known.probes[i] for i in choose_probes(session.state, most)]
        readings = await server.read_all([probe.prompt for probe in asked])
        _note(found, reference, asked, readings)
        found.first_failure = server.why
        seen.tokens += sum(
            reference.count_tokens(probe)
            for probe, reading in zip(asked, readings, strict=True)
            if reading is None or not reading.prompt_tokens
        )
    found.salted = server.salted
    seen.tokens += server.tokens


async def _settle(server: AskedServer, reference: WatchReference) -> str:
    """Find out whether the endpoint takes the reference's questions, and return why not."""
    try:
        await server.settle(FIRST, route=reference.known.route)
    except Unreadable as error:
        return str(error)
    server.salted = server.salted and reference.known.salted
    return "" if server.lists else "the endpoint reports no log-probabilities of its tokens"


def _note(
    found: SeenProbes,
    reference: WatchReference,
    asked: Sequence[Probe],
    readings: Sequence[ProbeReading | None],
) -> None:
    """Record the distance of each probe. Texts without log-probabilities are no evidence."""
    limits = reference.limits
    found.asked = [probe.id for probe in asked]
    for probe, reading in zip(asked, readings, strict=True):
        distance = None
        if reading is not None:
            found.listed |= bool(reading.tokens)
            distance = measure_distance(probe.id, probe.reading, reading)
        if distance is None or distance.texts_only:
            found.nats.append(None)
        else:
            found.nats.append(round(distance.nats, 6))
    found.beyond = sum(nats > limits.beyond_floor for nats in found.measured)
    found.far = sum(nats > limits.far_alone for nats in found.measured)
