"""Find the server's sampling defaults, or compare them with those of another run."""

from __future__ import annotations

import ast
import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.sampling.reading import (
    PROMPT,
    SEED,
    SHORT,
    ProbeAnswer,
    ProbeQuestion,
    Readings,
    conclude,
    leave_one_out,
    list_controls,
    list_extremes,
    list_neutral,
)
from serve_eval.evaluation.capabilities.sampling.sending import list_kept, list_replaced, read_kept
from serve_eval.frozen import freeze_places
from serve_eval.protocol.sampling_fields import ROWS, SERVER_ADDS, TABLE, server_kind
from serve_eval.schema import (
    Endpoint,
    Failure,
    Message,
    Prompt,
    Reference,
    Report,
    Request,
    SamplingDefaults,
    SamplingParams,
    Task,
)

AT_ONCE = 16
"""Requests in flight at most."""
REFUSALS = (400, 404, 422, 501)
"""Statuses of a server that refuses a field or its value."""
PROBE_S = 120.0
"""Seconds after which a server that generates slowly is left alone."""


async def probe_defaults(client: Client, endpoint: Endpoint, *, chat: bool) -> SamplingDefaults:
    """Return the sampling defaults of an endpoint.

    `endpoint` says which kind of server it is, as far as that is known. Never raises for what the
    endpoint does: what it does not answer is unknown.
    """
    asking = DefaultsProbe(client, server_kind(endpoint.info), chat=chat)
    begin = time.monotonic()
    try:
        async with asyncio.timeout(PROBE_S):
            await asking.ask_all()
    except TimeoutError:
        asking.readings.cut_off = True
    return conclude(
        asking.readings,
        requests=asking.requests,
        tokens=asking.tokens,
        wall_s=round(time.monotonic() - begin, 3),
    )


class DefaultsProbe:
    """The questions to one endpoint, and the answers so far."""

    def __init__(self, client: Client, server: str | None, *, chat: bool) -> None:
        self._client, self._server = client, server
        self._prompt: Prompt = (Message(role="user", content=PROMPT),) if chat else PROMPT
        most = client.limits.concurrency
        self._limit = asyncio.Semaphore(AT_ONCE if most == "auto" else min(AT_ONCE, most))
        self.readings = Readings(server=server, neutral=list_neutral(server))
        self.requests = self.tokens = 0

    async def ask_all(self) -> None:
        """Ask whether anything is added and which fields are heeded; if so, which are added."""
        told = self.readings
        await self._ask({**list_controls(told.neutral), **list_extremes(told.neutral)})
        if told.refuses_neutral:
            alone = {
                f"alone {name}": ProbeQuestion(temperature=0.0, fields={name: value}, tokens=SHORT)
                for name, value in told.neutral.items()
            }
            await self._ask(alone)
            told.neutral = list_neutral(self._server, told.list_refused())
            await self._ask({**list_controls(told.neutral), **list_extremes(told.neutral)})
        for kind in told.list_unsettled():
            await self._ask_again(kind)
        if told.lacks_presence:
            await self._ask(told.list_hot_penalties())
        for kind in told.list_added():
            names = [row.name for row in TABLE if told.obeys(row.name) == "heeded"]
            await self._ask(dict(leave_one_out(told.neutral, names, hot=kind == "hot")))
            await self._confirm(kind)

    async def _ask_again(self, kind: str) -> None:
        """Ask a control once more, one after the other.

        The first of them may have been computed without a prefix cache, or in a larger batch.
        """
        controls = list_controls(self.readings.neutral)
        for name in (kind, f"{kind} again", f"{kind} bare"):
            await self._ask({name: controls[name]})

    async def _confirm(self, kind: str) -> None:
        """Ask again what differed, so that numerics are not taken for a default."""
        told = self.readings
        controls = list_controls(told.neutral)
        again = {f"{kind} third": controls[kind], f"{kind} bare again": controls[f"{kind} bare"]}
        for name, question in leave_one_out(told.neutral, ROWS, hot=kind == "hot"):
            if name in told.answers and told.differs(name, kind):
                again[f"{name} again"] = question
        await self._ask(again)

    async def _ask(self, questions: Mapping[str, ProbeQuestion]) -> None:
        answers = await asyncio.gather(*map(self._send, questions.values()))
        self.readings.answers.update(zip(questions, answers, strict=True))

    async def _send(self, question: ProbeQuestion) -> ProbeAnswer:
        request = Request(
            sample_id="probe",
            prompt=self._prompt,
            sampling=SamplingParams(
                max_tokens=question.tokens,
                temperature=question.temperature,
                top_p=None,
                seed=SEED if question.temperature != 0 else None,
            ),
            extra={
                ROWS[name].name_at(self._server): value for name, value in question.fields.items()
            },
        )
        async with self._limit:
            self.requests += 1
            result = await self._client.send(request, once=True)
        if isinstance(result, Failure):
            return ProbeAnswer(refused=result.status in REFUSALS, why=result.message)
        usage = result.usage
        self.tokens += usage.prompt_tokens + usage.completion_tokens
        thoughts = result.reasoning or ""
        return ProbeAnswer(text=f"{thoughts}\0{result.text}" if thoughts else result.text)


_OVERRIDDEN = re.compile(
    r"sampling param\w* (?:have|has) been overridden by the model's "
    r"[^{\n]{0,200}(\{[^{}\n]{0,1000}\})",
    re.IGNORECASE,
)
"""vLLM's warning at its start, with the fields as a Python dictionary (vllm/config/model.py)."""
MOST_BYTES = 2_000_000
"""The part of a log that holds the start of a server."""


def read_logged(paths: Iterable[Path]) -> dict[str, float]:
    """Return the fields with their values that the logs of servers name, empty if none do."""
    found: dict[str, float] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        for match in _OVERRIDDEN.finditer(text):
            found |= dict(_read_fields(match[1]))
    return found


def _read_fields(text: str) -> Iterator[tuple[str, float]]:
    try:
        told = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return
    for name, value in told.items() if isinstance(told, dict) else ():
        if name in ROWS and isinstance(value, int | float) and value != ROWS[name].neutral:
            yield name, value


def put_logged(found: SamplingDefaults, logged: dict[str, float]) -> SamplingDefaults:
    """Return the defaults with the values of the log, which knows also what no answer shows."""
    if not logged:
        return found
    fields = tuple(
        msgspec.structs.replace(one, adds=True, value=logged[one.name])
        if one.name in logged
        else one
        for one in found.fields
    )
    told = ", ".join(f"{name} {value:g}" for name, value in logged.items())
    return msgspec.structs.replace(found, fields=fields, log=f"generation_config.json sets {told}")


@freeze_places
class SideSampling:
    """The sampling of a run beyond the options of its tasks.

    `kept` are the fields that its server added and that decided answers, by task.
    """

    found: SamplingDefaults | None
    kept: Mapping[str, Sequence[str]]

    @classmethod
    def of_tasks(cls, found: SamplingDefaults | None, tasks: Sequence[Task]) -> SideSampling:
        """Return the sampling of a run that is about to ask these tasks."""
        return cls(found, {task.name: list_kept(found, task) for task in tasks})

    @classmethod
    def of_report(cls, report: Report) -> SideSampling:
        """Return the sampling of a finished run."""
        kept = {task.result.task: read_kept(task) for task in report.tasks}
        return cls(report.sampling_defaults, kept)


@freeze_places
class UnlikePolicies:
    """A difference that two policies make, not two servers.

    `keeps` is the side that left fields to its server, for which the other sent neutral values.
    `told` has a line for each task.
    """

    keeps: str
    told: tuple[str, ...]


def find_unlike_policies(a: SideSampling, b: SideSampling) -> UnlikePolicies | None:
    """Return how the policies of A and B make their sampling differ.

    None: both have one policy, under which unlike servers are compared, or the policies ask alike,
    as where nothing is added. Nothing is refused for what a probe could not find out.
    """
    for name, other, one, against in (("A", "B", a, b), ("B", "A", b, a)):
        if told := tuple(_list_replaced(name, other, one, against)):
            return UnlikePolicies(name, told)
    return None


def _list_replaced(
    name: str, other: str, one: SideSampling, against: SideSampling
) -> Iterator[str]:
    sent = against.found
    if one.found is None or sent is None or one.found.policy == sent.policy:
        return
    for task, kept in one.kept.items():
        replaced = [
            field
            for field in kept
            if (at := sent.find(field)) is not None and at.sent_as in sent.sent
        ]
        if replaced and task in against.kept:
            yield (
                f"{task}: {SERVER_ADDS} is {[*kept]} for {name} and {[*against.kept[task]]} for"
                f" {other}, which sent a neutral {', '.join(replaced)}"
            )


OLDER = "the reference is older than the probe for it"
"""The remark about a reference that does not say what its servers added."""


class OtherSampling(NamedTuple):
    """A difference between the sampling of a run and of its reference, or a doubt about one.

    `differs`: it is a difference of the protocol, which refuses the reference. Otherwise it is a
    doubt, and a warning. `hint` says how to ask as the reference's runs asked.
    """

    told: str
    differs: bool
    hint: str = ""


def compare_with_reference(
    found: SamplingDefaults | None, reference: Reference, task: Task
) -> OtherSampling | None:
    """Return how the fields that decide a run's answers differ from those of its reference.

    Fields count that the server adds and that nothing replaces. A published value is taken to be
    one of the task's own protocol, to which nothing is added. An own reference of an older version
    does not say: its runs sent no fields, so that it stays comparable where nothing is added, and
    where nothing is replaced. None: equal, or nothing is known of this run.
    """
    if found is None or task.prompt_logprobs:
        return None
    here, replaced = list_kept(found, task), list_replaced(found, task)
    runs = reference.runs
    if runs is not None and runs.server_adds is None:
        return _compare_with_unknown(here, [one for one in replaced if one not in here])
    then = () if runs is None else runs.server_adds or ()
    lacking = [name for name in then if name not in here]
    unknown = [name for name in lacking if _is_unknown(found, name)]
    if {*here} <= {*then} and unknown == lacking:
        return _doubt(unknown) if unknown else None
    told = (
        f"{SERVER_ADDS} is {[*here]} here and {[*then]} with the reference: servers added"
        f" {_join(then)} to its requests, and {_join(here)} to these"
    )
    instead = [name for name in lacking if name in replaced]
    if instead:
        told += f", which send a neutral {_join(instead)}"
    return OtherSampling(told, differs=True, hint=_advise(found, here, then, instead))


def _compare_with_unknown(here: Sequence[str], replaced: Sequence[str]) -> OtherSampling | None:
    """Compare with a reference whose runs sent no fields to servers that were not probed."""
    if replaced:
        told = (
            f"{SERVER_ADDS} is not known with the reference: this run replaces {_join(replaced)},"
            f" which the server adds, and {OLDER}, so that its server may have added the same"
        )
        return OtherSampling(told, differs=True, hint=_KEEP)
    if here:
        told = (
            f"the server adds {_join(here)} to these requests, and {OLDER}: they compare only if"
            " its server added the same"
        )
        return OtherSampling(told, differs=False)
    return None


def _doubt(unknown: Sequence[str]) -> OtherSampling:
    told = (
        f"servers added {_join(unknown)} to the requests of the reference, and it is not known if"
        " this server does"
    )
    return OtherSampling(told, differs=False)


def _is_unknown(found: SamplingDefaults, name: str) -> bool:
    """Return True if a server may add a field, and nothing replaces it."""
    one = found.find(name)
    return one is None or (one.adds is None and one.sent_as not in found.sent)


_KEEP = "--set server_defaults=keep leaves these fields to the server, as the reference's runs did."


def _advise(
    found: SamplingDefaults, here: Sequence[str], then: Sequence[str], instead: Sequence[str]
) -> str:
    """Return what makes the sampling equal, "" if only another reference does."""
    if not here and {*then} <= {*instead}:
        return _KEEP
    if found.policy == "keep" and not then:
        return "--set server_defaults=neutral replaces what the server adds."
    return ""


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
