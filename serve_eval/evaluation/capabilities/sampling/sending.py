"""Choose the neutral values that a run sends, and name the server's values that remain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from serve_eval.client.wire_format.wire import NeutralField, NeutralFields
from serve_eval.protocol.sampling_fields import OF_OPTIONS, ROWS, SERVER_ADDS, TABLE, canonical
from serve_eval.schema import (
    Report,
    SamplingDefault,
    SamplingDefaults,
    ServerDefaults,
    Task,
    TaskReport,
)
from serve_eval.schema.task import REQUESTS
from serve_eval.shell_words import quote_word

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


def list_open(found: SamplingDefaults, task: Task) -> tuple[str, ...]:
    """Return the fields that could change answers of a task, if the server adds them.

    It is not known whether it does.
    """
    return tuple(one.sent_as for one in found.possible if not _is_settled(one, found, task))


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


DIFFER = "the servers' sampling defaults differ"
"""The beginning of every sentence about two servers."""
NEUTRAL = "--set server_defaults=neutral replaces it"
"""The way to replace what a run keeps of the server."""


def describe_added(found: SamplingDefaults) -> str:
    """Return the fields that the server adds, with values from its log; empty if there are none."""
    return ", ".join(_name(one) for one in found.added)


def _name(one: SamplingDefault) -> str:
    return one.sent_as if one.value is None else f"{one.sent_as} {one.value:g}"


def describe_defaults(found: SamplingDefaults | None) -> list[str]:
    """Return lines for the page and the details: what is added, sent, and not known."""
    if found is None:
        return []
    lines = []
    if added := describe_added(found):
        lines.append(f"the server adds {added} to requests that lack it")
    elif all(one.adds is False for one in found.fields):
        lines.append("no field was seen that the server adds to requests")
    if found.sent:
        told = ", ".join(f"{name} {value:g}" for name, value in found.sent.items())
        lines.append(f"sent with neutral values: {told}")
    for obedience in ("ignored", "refused"):
        if names := [one.sent_as for one in found.fields if one.obedience == obedience]:
            lines.append(f"{obedience} by the server: {', '.join(names)}")
    if unknown := [one.sent_as for one in found.possible]:
        why = f" ({found.unknown})" if found.unknown else ""
        lines.append(f"it is not known whether the server adds {', '.join(unknown)}{why}")
    if found.log:
        lines.append(f"its log: {found.log}")
    return lines


def warn_of_defaults(found: SamplingDefaults | None, tasks: Sequence[Task]) -> list[str]:
    """Return warnings about what the server adds: what changes answers here, or elsewhere.

    A penalty that neutral values of the run replace changes the answers of other clients.
    """
    if found is None:
        return []
    lines = []
    kept = {name for task in tasks for name in list_kept(found, task)}
    if kept:
        lines.append(
            f"the server adds {_name_some(found, kept)} to requests that lack it, which changes"
            f" answers (generation_config.json?): {'; '.join(advise(kept, found))}"
        )
    replaced = {name for task in tasks for name in list_replaced(found, task)} - kept
    if any(ROWS[name].greedy for name in replaced):
        lines.append(
            f"the server adds {_name_some(found, replaced)} to requests that lack it"
            " (generation_config.json?), and this run sent neutral values: clients that send none"
            " get other answers, which --set server_defaults=keep measures"
        )
    return lines


def advise(names: Collection[str], *sides: SamplingDefaults | None) -> list[str]:
    """Return how to replace fields that servers add and that decide answers, a line per way.

    Neutral values are no way for a field that a task sets: null leaves that to the server. `sides`
    is one run, or A and B: those of them that kept what their servers add must be asked again.
    """
    ways: dict[str, list[str]] = {}
    for row in (row for row in TABLE if row.name in names):
        found = [one for side in sides if side is not None and (one := side.find(row.name))]
        if row.name in OF_OPTIONS:
            way = "the task leaves it to the server (null): give the option a value"
        elif any(side is not None and side.policy == "keep" for side in sides):
            way = NEUTRAL if len(sides) == 1 else f"{NEUTRAL}: ask {_name_keepers(sides)} again"
        elif found and all(one.obedience == "heeded" for one in found):
            way = "no value is known to be neutral: set it in `extra_body` of the task"
        else:
            way = "no value of a request replaces it, so change the server"
        ways.setdefault(way, []).append(row.name)
    if len(ways) == 1:
        return list(ways)
    return [f"{', '.join(some)}: {way}" for way, some in ways.items()]


def _name_keepers(sides: Sequence[SamplingDefaults | None]) -> str:
    keepers = [
        name
        for name, side in zip("AB", sides, strict=True)
        if side is not None and side.policy == "keep"
    ]
    return " and ".join(keepers)


def _name_some(found: SamplingDefaults, names: Collection[str]) -> str:
    return ", ".join(_name(one) for one in found.added if one.name in names)


def name_difference(
    a: SamplingDefaults | None, b: SamplingDefaults | None, names: tuple[str, str] = ("A", "B")
) -> str:
    """Return a sentence if one of two servers adds what the other does not, else an empty text."""
    told = []
    for name in find_different(a, b):
        one, other = (None if side is None else side.find(name) for side in (a, b))
        adding = [
            f"{who} adds {_name(side)}"
            for who, side in zip(names, (one, other), strict=True)
            if side is not None and side.adds
        ]
        told.append(" and ".join(adding))
    return f"{DIFFER}: {', '.join(told)}" if told else ""


def find_different(a: SamplingDefaults | None, b: SamplingDefaults | None) -> list[str]:
    """Return the fields that one of two servers adds and the other does not, or differently.

    A field of which one is not known is left out.
    """
    if a is None or b is None:
        return []
    found = []
    for one in a.fields:
        other = b.find(one.name)
        if other is None or one.adds is None or other.adds is None:
            continue
        values = one.value, other.value
        if one.adds != other.adds or (None not in values and values[0] != values[1]):
            found.append(one.name)
    return found


def compare_defaults(a: Report, b: Report) -> str:
    """Return a sentence if the servers of two runs add unlike fields, with the effect on answers.

    Empty if they do not, as far as the probes of both show.
    """
    told = name_difference(a.sampling_defaults, b.sampling_defaults)
    if not told:
        return ""
    kept = list_different_kept(a, b)
    others = [one for one in find_different(*_read_defaults(a, b)) if one not in kept]
    if kept:
        ways = "; ".join(advise(kept, *_read_defaults(a, b)))
        told += f"; the answers below differ by {', '.join(kept)}: {ways}"
    if others:
        told += (
            f"; the answers below do not differ by {', '.join(others)}: neutral values were sent,"
            " or it decides none of them"
        )
    return told


def _read_defaults(a: Report, b: Report) -> tuple[SamplingDefaults | None, SamplingDefaults | None]:
    return a.sampling_defaults, b.sampling_defaults


def describe_left(a: Report, b: Report) -> list[str]:
    """Return a warning for each task of which both plans leave a field to the servers.

    No probe is needed to know that servers with other defaults then answer otherwise.
    """
    others = {task.result.task: task.fingerprint for task in b.tasks}
    left: dict[str, list[str]] = {}
    for task in a.tasks:
        other = others.get(task.result.task, {})
        fields = [
            one
            for one in OF_OPTIONS
            if task.fingerprint.get(one) == "null" and other.get(one) == "null"
        ]
        if fields and task.spec.name != REQUESTS:
            left.setdefault(" and ".join(fields), []).append(task.result.task)
    return [
        f"the plan leaves {fields} of {', '.join(tasks)} to the servers (null): servers with other"
        f" defaults give other answers; set it, as in --set {quote_word(tasks[0])}."
        f"{fields.split()[0]}=VALUE, to ask both alike"
        for fields, tasks in left.items()
    ]


def list_different_kept(a: Report, b: Report) -> list[str]:
    """Return the different fields that decide answers of these runs."""
    kept = {name for report in (a, b) for task in report.tasks for name in read_kept(task)}
    return [
        name for name in find_different(a.sampling_defaults, b.sampling_defaults) if name in kept
    ]
