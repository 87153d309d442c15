"""A server that answers in batches, and whose answers depend on the number in flight."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Limits, Plan, Spec
from tests.scripted_server import ScriptedServer, answer, external, fail, models

ACCURACY = 0.8
QUIET_S = 0.001
QUIET, LONG = 2, 30
"""Times QUIET_S without a new request after which a batch is complete; LONG if it is smaller than
the ones before, so that a batch which a busy machine has split grows together again."""

Damage = Callable[[str, int, int], bool]
"""True if the answer to a prompt is wrong, by the number in flight and that of earlier requests."""


def draw(*what):
    """Return a number from 0 to 1, the same for the same arguments."""
    return random.Random(repr(what)).random()


def plan_of(url, prompts, **limits):
    """Return a plan that asks this number of word problems."""
    return Plan(
        model="m",
        launcher=external(url),
        tasks=(Spec(name="word_problems", options={"num_samples": prompts}),),
        limits=Limits(stream=True, **limits),
    )


def targets_of(prompts):
    """Return the right answers of this number of word problems, by prompt."""
    samples = build_task(Spec(name="word_problems")).load(DataRoots(), prompts).samples
    return {str(sample.prompt): sample.target.split()[-1] for sample in samples}


@dataclass(kw_only=True)
class BatchServer:
    """Answers word problems in batches, of as many requests as are in flight.

    Of the answers, `noise` are drawn again at each asking, and `numerics` are drawn once for each
    number in flight, so that a batch size changes answers in both directions. `refuse_from` is the
    number in flight from which requests fail.
    """

    targets: Mapping[str, str]
    seed: int = 0
    damage: Damage = lambda prompt, load, before: False
    noise: float = 0.02
    numerics: float = 0.0
    refuse_from: int | None = None
    asked: int = 0
    _waiting: list[asyncio.Future[int]] = field(default_factory=list)
    _sizes: deque[int] = field(default_factory=lambda: deque([1], maxlen=4))

    def server(self):
        """Return a server on a real socket."""
        return ScriptedServer(
            self._reply, paths=["/v1/completions"], routes={"/v1/models": models("m")}
        )

    async def _reply(self, request):
        target = self.targets.get(request.prompt)
        if target is None:
            return answer("ok")
        before, self.asked = self.asked, self.asked + 1
        load = await self._join_batch()
        if self.refuse_from is not None and load >= self.refuse_from:
            return fail(400, "too many requests in this batch")
        return answer(self._say(request.prompt, target, load, before), usage=(9, 9))

    def _say(self, prompt, target, load, before):
        right = draw(self.seed, prompt) < ACCURACY
        if draw(self.seed, prompt, load, "moved") < self.numerics:
            right = draw(self.seed, prompt, load) < ACCURACY
        if draw(self.seed, before, "noise") < self.noise:
            right = draw(self.seed, before) < ACCURACY
        begin = f"{prompt[10:30].split()[0]} {len(prompt)} and so they have in all"
        if self.damage(prompt, load, before):
            return f"{begin} lost it.\n#### 0"
        return f"{begin} now:\n#### {target if right else int(target) + 1}"

    async def _join_batch(self):
        """Wait until the batch is complete, and return the number in flight."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            quiet = 0
            while quiet < (QUIET if len(self._waiting) >= max(self._sizes) else LONG):
                size = len(self._waiting)
                await asyncio.sleep(QUIET_S)
                quiet = quiet + 1 if size == len(self._waiting) else 0
            batch, self._waiting = self._waiting, []
            self._sizes.append(len(batch))
            for one in batch:
                one.set_result(len(batch))
        return await mine
