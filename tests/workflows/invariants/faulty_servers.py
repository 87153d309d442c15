"""Serve with a prefix cache or copied codes, soundly or with one fault."""

import asyncio
import random
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.invariants.canary_codes import ALPHABET, GROUP, LENGTH, TOOL
from serve_eval.workflows.invariants.check import check
from tests.scripted_server import (
    ScriptedServer,
    answer,
    external,
    fail,
    json_reply,
    models,
    raw,
    tool_call,
)

BLOCK = 8
"""Words of a block."""
CacheFault = Literal["none", "reload", "stale"]


@dataclass(kw_only=True)
class BlockCache:
    """An LRU cache of whole blocks of words, with room for `device` and then `host` blocks.

    A block is known by all words up to its end. What leaves the device goes to the host, and comes
    back when it is found there.
    """

    device: int
    host: int = 0
    near: OrderedDict[int, None] = field(default_factory=OrderedDict)
    far: OrderedDict[int, None] = field(default_factory=OrderedDict)
    gone: set[int] = field(default_factory=set)

    def find(self, words):
        """Return the cached blocks, those from the host, and those that once were there.

        All blocks of the prompt are then in the cache.
        """
        blocks = [hash(tuple(words[:end])) for end in range(BLOCK, len(words), BLOCK)]
        hits = reloaded = 0
        for block in blocks:
            if block in self.near:
                hits += 1
            elif block in self.far:
                hits, reloaded = hits + 1, reloaded + 1
            else:
                break
        lost = sum(block in self.gone for block in blocks[hits:])
        for block in reversed(blocks):
            self._put(block)
        return hits, reloaded, lost

    def _put(self, block):
        self.far.pop(block, None)
        self.gone.discard(block)
        self.near[block] = None
        self.near.move_to_end(block)
        while len(self.near) > self.device:
            self.far[self.near.popitem(last=False)[0]] = None
        while len(self.far) > self.host:
            self.gone.add(self.far.popitem(last=False)[0])


@dataclass(kw_only=True)
class CacheServer:
    """A server that knows the answers to prompts.

    With the fault `reload`, blocks that come back from the host give another number; with `stale`,
    evicted blocks are still found and give the answer to another prompt. Either strikes a `share`
    of the prompts that it concerns. A share `varies` of the answers is another number by chance.
    `counts`: the server reports cached tokens. `room`: /metrics has the size of the cache.
    """

    texts: Mapping[str, str]
    cache: BlockCache | None
    fault: CacheFault = "none"
    share: float = 1.0
    varies: float = 0.0
    counts: bool = True
    room: bool = False
    seed: int = 0
    struck: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self):
        self._chance = random.Random(f"cache server {self.seed}")
        self._others = sorted(set(self.texts.values()))

    async def reply(self, request):
        """Answer a request."""
        return await self._script(request)(request)

    def _script(self, request):
        words = request.prompt.split()
        self.asked.append(request.prompt)
        hits, reloaded, lost = (0, 0, 0) if self.cache is None else self.cache.find(words)
        stale = lost if self.fault == "stale" else 0
        said = self.texts.get(request.prompt, "ok")
        concerned = reloaded if self.fault == "reload" else stale
        if concerned and request.prompt in self.texts and self._chance.random() < self.share:
            self.struck += 1
            said = (
                f"Together these are {self._chance.randrange(1000, 9999)}."
                if self.fault == "reload"
                else self._chance.choice([one for one in self._others if one != said])
            )
        elif request.prompt in self.texts and self._chance.random() < self.varies:
            said = f"Together these are {self._chance.randrange(1000, 9999)}."
        usage = {"prompt_tokens": len(words), "completion_tokens": 6}
        if self.counts:
            usage["prompt_tokens_details"] = {"cached_tokens": (hits + stale) * BLOCK}
        return answer(said, body={"usage": usage})

    def tell_metrics(self):
        """Return /metrics in the form of vLLM."""
        blocks = self.cache.device if self.cache is not None and self.room else 0
        config = f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{blocks}"}} 1.0\n'
        counted = 'vllm:request_success_total{model_name="m"} 1.0\n'
        return raw((config + counted).encode(), content_type="text/plain")


def make_plan(prompts):
    """Return a plan of generated problems, to be asked eight at a time."""
    return Plan(
        model="m",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="word_problems", options={"num_samples": prompts}),),
        limits=Limits(concurrency=8),
    )


def list_answers(plan):
    """Return right answers by prompt."""
    [task] = prepare(replace(plan, no_reference=True))
    return {str(s.prompt): f"Together these are {s.target}." for s in task.dataset.samples}


async def check_server(
    server,
    plan,
    budget,
    out,
    between=(),
):
    """Check a server under pressure, without the passes around chunk boundaries.

    Each function of `between` takes the result, and another check in the same folder follows.
    """
    owner = "vllm" if server.room else "me"
    listed = json_reply({"data": [{"id": "m", "object": "model", "owned_by": owner}]})
    scripted = ScriptedServer(
        server.reply,
        paths=["/v1/completions"],
        routes={"/v1/models": listed, "/metrics": lambda _: server.tell_metrics()},
    )
    async with scripted.serve() as url:
        at = replace(plan, launcher=external(url))
        for then in (*between, None):
            found = await check(at, out, environ={}, chunk_tokens=(), kv_pressure=budget)
            if then is not None:
                then(found)
    return found


_GROUP = f"[{ALPHABET}]{{{GROUP}}}"
_CODE = re.compile(rf"\b(?:{_GROUP}-{_GROUP}-{_GROUP}|[{ALPHABET}]{{{LENGTH}}})\b")


def code_in(prompt):
    """Return the code of a prompt, as it is written there; None for a probe."""
    found = _CODE.findall(prompt)
    return found[-1] if found else None


@dataclass(kw_only=True)
class Exchange:
    """Requests in flight together, of which a share gets the answer to another one.

    Requests wait until `together` of them are there or no more come. Then each is answered, and
    a `share` of the pairs, drawn with a seed, has its answers exchanged.
    """

    share: float
    seed: int
    together: int = 8
    pause_s: float = 0.05
    swapped: int = 0
    _waiting: list[tuple[str, asyncio.Future[str]]] = field(default_factory=list)
    _draw: random.Random = field(init=False)

    def __post_init__(self):
        self._draw = random.Random(self.seed)

    async def pass_on(self, text):
        """Return the text that a request gets instead of its own one."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append((text, mine))
        if len(self._waiting) >= self.together:
            self._answer()
        else:
            try:
                return await asyncio.wait_for(asyncio.shield(mine), self.pause_s)
            except TimeoutError:
                if not mine.done():
                    self._answer()
        return str(await mine)

    def _answer(self):
        batch, self._waiting = self._waiting, []
        texts = [text for text, _ in batch]
        order = list(range(len(batch)))
        self._draw.shuffle(order)
        for one, other in zip(order[::2], order[1::2], strict=False):
            if self._draw.random() < self.share:
                texts[one], texts[other] = texts[other], texts[one]
                self.swapped += 2
        for text, (_, future) in zip(texts, batch, strict=True):
            if not future.done():
                future.set_result(text)


def copier(leak=None, *, copies=True, tools=True):
    """Return a server that repeats the code of each prompt, unless `leak` replies otherwise."""
    before = []

    async def reply(request):
        code = code_in(request.prompt)
        if "tools" in request.body and not tools:
            return fail(400, "this server takes no tools")
        if code is None:
            return answer("ok", usage=(9, 1))
        earlier = list(before)
        before.append(code)
        if leak is not None and (other := leak(request, code, earlier)) is not None:
            return other if callable(other) else await other
        if not copies:
            return answer("It is a fine day.", usage=(90, 6))
        if "tools" in request.body:
            return tool_call(TOOL, {"code": code})
        return answer(f"The code is {code}.", usage=(90, 12))

    paths = ["/v1/completions", "/v1/chat/completions"]
    return ScriptedServer(reply, paths=paths, routes={"/v1/models": models("m")})
