"""Choose the neutral values that a run sends, and name what of the server's remains. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from serve_eval.client.wire_format.neutral_fields import NeutralField, NeutralFields
from serve_eval.protocol.fingerprint import SERVER_ADDS, canonical
from serve_eval.protocol.sampling_fields import OF_OPTIONS, ROWS
from serve_eval.schema import SamplingDefault, SamplingDefaults, ServerDefaults, Task, TaskReport

_WORST = ("refused", "ignored", "unknown", "heeded")
"""Ways of handling a value, that first which decides for two routes together."""


def join_routes(chat: SamplingDefaults, text: SamplingDefaults) -> SamplingDefaults:
    """Return the defaults of an endpoint that a run asks by chat and by text.

    A field is heeded if it is on both routes, and added if it is on one of them.
    """
    fields = []
    for one in chat.fields:
        other = text.find(one.name) or one
        adds = {one.adds, other.adds}
        fields.append(
            msgspec.structs.replace(
                one,
                obedience=min(one.obedience, other.obedience, key=_WORST.index),
                adds=True if True in adds else None if None in adds else False,
            )
        )
    return msgspec.structs.replace(
        chat,
        fields=tuple(fields),
        unknown=chat.unknown or text.unknown,
        requests=chat.requests + text.requests,
        tokens=chat.tokens + text.tokens,
        wall_s=round(chat.wall_s + text.wall_s, 3),
    )


def choose_sent(found: SamplingDefaults, policy: ServerDefaults) -> SamplingDefaults:
    """Return the defaults with the neutral values that a run under this policy sends.

    A field is sent if its probe showed that it is heeded, also where nothing seems to be added: a
    penalty may be too small to change the answers of the probe. The temperature and top_p are left
    to the options of the task, which set both.
    """
    sent = {
        one.sent_as: one.neutral
        for one in found.fields
        if one.obedience == "heeded" and one.neutral is not None and one.name not in OF_OPTIONS
    }
    return msgspec.structs.replace(found, policy=policy, sent=sent if policy == "neutral" else {})


def to_fields(found: SamplingDefaults) -> NeutralFields:
    """Return the fields that a client adds to its requests."""
    return NeutralFields(
        NeutralField(
            sent_as=one.sent_as,
            value=_whole(found.sent[one.sent_as]),
            names=ROWS[one.name].all_names,
            greedy=ROWS[one.name].greedy,
        )
        for one in found.fields
        if one.sent_as in found.sent
    )


def _whole(value: float) -> float:
    """Return a whole number as an integer, since a server may take no other for top_k."""
    return int(value) if value == int(value) else value


def list_kept(found: SamplingDefaults | None, task: Task) -> tuple[str, ...]:
    """Return the fields that the server adds to the requests of a task and that change answers.

    At temperature 0 only penalties do. A field that the run or the task sets is not added.
    """
    if found is None or task.prompt_logprobs:
        return ()
    return tuple(one.name for one in found.added if not _is_settled(one, found, task))


def _is_settled(one: SamplingDefault, found: SamplingDefaults, task: Task) -> bool:
    row, sampling = ROWS[one.name], task.sampling
    if one.name in OF_OPTIONS and getattr(sampling, one.name) is not None:
        return True
    if sampling.temperature == 0 and not row.greedy:
        return True
    return one.sent_as in found.sent or not row.all_names.isdisjoint(task.extra)


def list_replaced(found: SamplingDefaults, task: Task) -> tuple[str, ...]:
    """Return the fields that the server adds and that neutral values of the run replace."""
    return list_kept(msgspec.structs.replace(found, sent={}), task) if found.sent else ()


def put_kept(
    fingerprint: Mapping[str, str], found: SamplingDefaults | None, task: Task
) -> dict[str, str]:
    """Return the fingerprint of a task with what the server adds to its requests."""
    kept = list_kept(found, task)
    return {**fingerprint, **({SERVER_ADDS: canonical(kept)} if kept else {})}


def read_kept(task: TaskReport) -> list[str]:
    """Return the fields that the fingerprint of a report names as added by the server."""
    told = task.fingerprint.get(SERVER_ADDS)
    return [] if told is None else msgspec.json.decode(told, type=list[str])
