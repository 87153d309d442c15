"""An endpoint whose answers and state a test changes during a watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serve_eval.launchers._standin import model as skills
from serve_eval.schema import Message
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail, models, raw
from tests.workflows.verify.model_server import ModelServer


@dataclass
class Endpoint:
    """An endpoint with faults.

    Every `wrong`-th question is answered wrong and every `failing`-th with HTTP 500 (0: none).
    `empty` makes all answers empty. `server.bodies` holds the requests, `alarms` what the webhook
    received. The webhook answers with the statuses in `refusals` until they are used up. `model`
    answers the probes.
    """

    wrong: int = 0
    failing: int = 0
    empty: bool = False
    chat: bool = True
    alarms: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    model: ModelServer | None = None
    server: ScriptedServer = field(init=False)

    def __post_init__(self) -> None:
        paths = ("/v1/completions", *(["/v1/chat/completions"] if self.chat else []))
        self.server = ScriptedServer(
            self._reply, paths=paths, routes={"/v1/models": models("m"), "/hook": self._hook}
        )

    def _reply(self, request: HttpRequest) -> Reply:
        if self.model is not None and _is_probe(request):
            return self.model.reply(request)
        if self.failing and request.number % self.failing == 0:
            return fail(500, "Internal Server Error")
        text = skills.answer((Message(role="user", content=request.prompt),)) or "hm"
        if self.wrong and request.number % self.wrong == 0:
            text = "I do not know"
        return answer("" if self.empty else text, usage=(20, 4))

    def _hook(self, request: HttpRequest) -> Reply:
        if self.refusals:
            return fail(self.refusals.pop(0))
        self.alarms.append(request.body)
        return raw(status=204)


def _is_probe(request: HttpRequest) -> bool:
    return request.body.get("logprobs") is not None
