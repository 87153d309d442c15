"""Answer word problems rightly but for one fault, and make what diagnose says of its runs."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from serve_eval.client.wire_format.response_head import CONTEXT_SERVER, GENERATION_SERVER
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.protocol.shared import build_task
from serve_eval.report.document import list_statements
from serve_eval.schema import DataRoots, Endpoint, Limits, Plan, Spec
from serve_eval.workflows.diagnose.document import make_document
from serve_eval.workflows.diagnose.judged import list_outcomes, read_folder
from serve_eval.workflows.diagnose.story import diagnose_read
from tests.scripted_server import (
    ScriptedServer,
    answer,
    external,
    fail,
    models,
    raw,
    stream,
    version,
)

MODEL = "m"
TOKENS = 12
"""Tokens that the usage field reports for an answer."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: its number from 0, without probes, and how many are in flight with it."""

    number: int
    in_flight: int
    body: Mapping[str, Any]
    target: str

    def chance(self, what):
        """Return a number between 0 and 1 that only the prompt decides."""
        digest = hashlib.sha256(f"{what}:{self.target}:{_key(self.body)}".encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer. If `status` is 400 or more, `text` is the error message."""

    text: str
    finish: str = "stop"
    stop_reason: str | None = None
    tokens: int = TOKENS
    status: int = 200
    delay_s: float = 0.0
    prompt_tokens: int = 20
    cached: int | None = None
    servers: tuple[str, str] | None = None
    reasoning: str | None = None
    hidden: int | None = None


Act = Callable[[Asked], Said]


def sound(asked, accuracy=0.95):
    """Answer most prompts rightly."""
    right = asked.chance("right") < accuracy
    return Said(text=asked.target if right else f"{asked.target}1")


def answers_to(spec, roots=()):
    """Return the right answer to each prompt of a task."""
    places, wanted = DataRoots(roots=roots), int(str(spec.options["num_samples"]))
    samples = build_task(spec).load(places, wanted).samples
    return {_text(sample.prompt): sample.target for sample in samples}


def _text(prompt):
    return prompt if isinstance(prompt, str) else prompt[-1].text


def _key(body):
    return str(body["prompt"] if "prompt" in body else body["messages"][-1]["content"])


@dataclass(kw_only=True)
class Server:
    """Answer as `act` decides, and keep the bytes of each request.

    `metrics` returns the text of an orchestrator's /prometheus/metrics for the number of scrapes so
    far. If `loses_streams`, a stream ends without its answer.
    """

    act: Act
    answers: Mapping[str, str]
    models: tuple[str, ...] = (MODEL,)
    metrics: Callable[[int], str] | None = None
    loses_streams: bool = False
    chat: bool = True
    more_prompt_tokens: int = 0
    scripted: ScriptedServer = field(init=False)
    _numbers: int = 0
    _in_flight: int = 0
    _scrapes: int = 0

    def __post_init__(self):
        paths = ["/v1/completions", *(["/v1/chat/completions"] if self.chat else [])]
        routes = {"/v1/models": models(*self.models)}
        if self.metrics is not None:
            routes |= {"/version": version("1.2.1"), "/prometheus/metrics/": self._scraped}
        self.scripted = ScriptedServer(self._reply, paths=paths, routes=routes)

    @property
    def received(self):
        return [request.raw for request in self.scripted.asked]

    @property
    def keys(self):
        return [request.headers.get("Authorization") for request in self.scripted.asked]

    def _scraped(self, request):
        assert self.metrics is not None
        self._scrapes += 1
        return raw(self.metrics(self._scrapes).encode(), content_type="text/plain")

    async def _reply(self, request):
        target = self.answers.get(request.prompt)
        if target is None:
            return self._answer(Said(text="4", tokens=1))
        self._in_flight += 1
        asked = Asked(
            number=self._numbers, in_flight=self._in_flight, body=request.body, target=target
        )
        self._numbers += 1
        said = self.act(asked)
        try:
            await asyncio.sleep(said.delay_s)
        finally:
            self._in_flight -= 1
        if said.status >= 400:
            return fail(said.status, said.text)
        if request.body.get("stream") and self.loses_streams:
            return stream(["[DONE]"])
        return self._answer(said)

    def _answer(self, said):
        usage = said.prompt_tokens + self.more_prompt_tokens, said.tokens
        more = {"finish": said.finish, "choice": {"stop_reason": said.stop_reason}}
        if said.servers is not None:
            context, generation = said.servers
            more["headers"] = {CONTEXT_SERVER: context, GENERATION_SERVER: generation}
        if said.reasoning is not None:
            message = {"role": "assistant", "content": said.text, "reasoning": said.reasoning}
            more["choice"] |= {"text": None, "message": message}
        if said.hidden is not None:
            told = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
            details = {"completion_tokens_details": {"reasoning_tokens": said.hidden}}
            return answer(said.text, body={"usage": {**told, **details}}, **more)
        if said.cached is not None:
            counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
            told = {**counts, "prompt_tokens_details": {"cached_tokens": said.cached}}
            return answer(said.text, body={"usage": told}, **more)
        return answer(said.text, usage=usage, **more)


def plan_for(folder, *, accuracy=90.0, protocol="", **options):
    """Return a plan for word problems, judged against a reference written into `folder`.

    `options` are those of the task.
    """
    (folder / "references").mkdir(parents=True, exist_ok=True)
    text = f"{MODEL}:\n  - accuracy: {accuracy}\n    source: declared by the tests\n{protocol}"
    (folder / "references" / "word_problems.yaml").write_text(text)
    return Plan(
        model=MODEL,
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="word_problems", options={"num_samples": 100, **options}),),
        references_dir=str(folder / "references"),
        limits=Limits(concurrency=8, max_attempts=1, max_error_rate=1.0, order_seed=1),
    )


def run(
    plan,
    server,
    out,
    environ=None,
    info=None,
):
    """Evaluate the server over a real socket; `info` is what a launcher reports about it."""

    async def evaluated():
        async with server.scripted.serve() as url:
            here = replace(plan, launcher=external(url))
            endpoint = Endpoint(base_url=url, model=plan.model, info=info or {})
            return await evaluate(
                here, out, environ=environ or {}, launching=lambda *_: nullcontext(endpoint)
            )

    return asyncio.run(evaluated())


def make_document_of(folder):
    """Return the document of the diagnosis of a folder."""
    answers = read_folder(folder)
    return make_document(diagnose_read(answers), list_outcomes(answers), folder)


def list_lines(folder):
    """Return the statements of that document, each behind its label, and its next commands."""
    document = make_document_of(folder)
    rows = [f"{row.label}: {row.text}" for row in list_statements(document)]
    return [*rows, *(f"next: {command}" for command in document.commands)]
