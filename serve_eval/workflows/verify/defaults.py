"""Compare what servers add to requests: sampling fields that a request leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from serve_eval.evaluation.capabilities.sampling import (
    choose_sent,
    name_difference,
    probe_defaults,
    put_logged,
    read_logged,
    to_fields,
)
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence.probes.judging import UNSOUND
from serve_eval.schema import (
    ProbeRoute,
    SamplingDefaults,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)

SOUND = (VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS)


async def learn_defaults(server: AskedServer) -> None:
    """Find out what a server adds to requests, and have its probes sent with neutral values.

    Probes of two tokens hardly show a penalty, and where they do it would look like a fault.
    """
    endpoint = server.client.endpoint
    endpoint = endpoint.with_info(**await server.client.describe())
    chat = server.route is not ProbeRoute.TEXT
    found = await probe_defaults(server.client, endpoint, chat=chat)
    log = endpoint.info.log_file
    server.defaults = put_logged(found, read_logged([] if log is None else [Path(log)]))
    server.client.encoder.neutral = to_fields(choose_sent(found, "neutral"))
    server.requests += found.requests
    server.tokens += found.tokens


def judge_defaults(side: VerifiedSide, known: VerificationReference, name: str) -> VerifiedSide:
    """Return a side whose server answers alike but adds other fields to requests than `name`."""
    told = name_difference(known.sampling_defaults, side.sampling_defaults, (name, side.name))
    if not told:
        return side
    if side.outcome in UNSOUND:
        return msgspec.structs.replace(side, why=f"{side.why}. Besides, {told}")
    why = f"{told}. Apart from that: {side.outcome.value}: {side.why}"
    return msgspec.structs.replace(side, outcome=VerificationOutcome.OTHER_DEFAULTS, why=why)


def warn_of_unseen(known: VerificationReference, sides: Sequence[VerifiedSide]) -> list[str]:
    """Return a line if the sampling defaults of servers called sound are not known, and why."""
    wholes = [one for one in sides if one.part_of is None and one.outcome in SOUND]
    if not wholes:
        return []
    if known.sampling_defaults is None:
        return [
            "the sampling defaults of the servers were not compared: the reference holds none"
            " (register it again)"
        ]
    found = []
    for name, one in (("the reference", known.sampling_defaults), *_list_known(wholes)):
        if fields := [field.sent_as for field in one.possible]:
            why = f" ({one.unknown})" if one.unknown else ""
            found.append(
                f"it is not known whether {name} adds {', '.join(fields)} to requests{why}"
            )
    return found


def _list_known(sides: Sequence[VerifiedSide]) -> list[tuple[str, SamplingDefaults]]:
    return [(one.name, one.sampling_defaults) for one in sides if one.sampling_defaults is not None]
