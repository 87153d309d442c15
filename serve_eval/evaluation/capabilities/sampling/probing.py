"""Find the server's sampling defaults by asking the endpoint, or from its log."""

from __future__ import annotations

import ast
import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
from serve_eval.protocol.sampling_fields import ROWS, TABLE, server_kind
from serve_eval.schema import (
    Endpoint,
    Failure,
    Message,
    Prompt,
    Request,
    SamplingDefaults,
    SamplingParams,
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
