"""Change the answers of an endpoint during a watch, on demand or by the hour."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from serve_eval.launchers._standin import model as standin_model
from serve_eval.schema import Message
from serve_eval.workflows.watch import judging
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State
from tests.scripted_server import ScriptedServer, answer, fail, models, raw
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

    def __post_init__(self):
        paths = ("/v1/completions", *(["/v1/chat/completions"] if self.chat else []))
        self.server = ScriptedServer(
            self._reply, paths=paths, routes={"/v1/models": models("m"), "/hook": self._hook}
        )

    def _reply(self, request):
        if self.model is not None and _is_probe(request):
            return self.model.reply(request)
        if self.failing and request.number % self.failing == 0:
            return fail(500, "Internal Server Error")
        text = standin_model.answer((Message(role="user", content=request.prompt),)) or "hm"
        if self.wrong and request.number % self.wrong == 0:
            text = "I do not know"
        return answer("" if self.empty else text, usage=(20, 4))

    def _hook(self, request):
        if self.refusals:
            return fail(self.refusals.pop(0))
        self.alarms.append(request.body)
        return raw(status=204)


def _is_probe(request):
    return request.body.get("logprobs") is not None


PROMPTS, MOST, EVERY = 60, 20, timedelta(minutes=10)
NIGHT = WatchRules(passes=8, tolerance=0.01, max_error_rate=0.05)
DAY = WatchRules(passes=8, tolerance=0.01, max_error_rate=0.05, baseline_hours=24.0)
START = datetime(2026, 1, 1, tzinfo=UTC)


def by_day(loss):
    """Return the factor on the chances of right answers: 1, and less from 9 to 17 o'clock."""
    return lambda at: 1.0 - loss if 9 <= at.hour < 17 else 1.0


class Watch:
    """A watch of prompts that are answered right with `right`, by default 90 %, times a factor."""

    def __init__(
        self,
        rules,
        seed,
        at=START,
        right=(0.9,) * PROMPTS,
    ):
        self.rules, self.at, self._random = rules, at, random.Random(seed)
        self._right = right
        rows = [[] for _ in range(PROMPTS)], [[] for _ in range(PROMPTS)]
        self.state = State(
            bound={},
            seed=seed,
            model="m",
            chat=True,
            answers=rows[0],
            usable=rows[1],
            misses=[0] * PROMPTS,
            prompt_tokens=[50] * PROMPTS,
        )

    def play(self, chance, rounds):
        """Return the alarms of so many rounds."""
        found = []
        for _ in range(rounds):
            asked = judging.questions_of(self.state, self.rules, MOST)
            seen = Seen(
                round=self.state.rounds + 1,
                started_at=self.at.isoformat(),
                seconds=1.0,
                asked=asked,
                values=[
                    float(self._random.random() < self._right[i] * chance(self.at)) for i in asked
                ],
                usable="1" * len(asked),
                prompt_tokens=[20] * len(asked),
                failures={},
            )
            found += judging.judge(self.state, seen, self.rules)
            self.at += EVERY
        return found

    def learn(self, chance):
        """Return the rounds of the baseline."""
        while self.state.accuracy is None:
            assert not self.play(chance, 1)
        return self.state.rounds
