"""A server that copies codes as a model does, and leaks in one of several ways."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from serve_eval.workflows.invariants.canaries.codes import ALPHABET, GROUP, LENGTH, TOOL
from tests.scripted_server import (
    HttpRequest,
    Reply,
    ScriptedServer,
    answer,
    fail,
    models,
    tool_call,
)

_GROUP = f"[{ALPHABET}]{{{GROUP}}}"
_CODE = re.compile(rf"\b(?:{_GROUP}-{_GROUP}-{_GROUP}|[{ALPHABET}]{{{LENGTH}}})\b")


def code_in(prompt: str) -> str | None:
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

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    async def pass_on(self, text: str) -> str:
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

    def _answer(self) -> None:
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


Leak = Callable[[HttpRequest, str, Sequence[str]], Reply | Awaitable[Reply] | None]
"""Returns another reply to a request with a code, given the codes before it; None: the right one.
"""


def copier(leak: Leak | None = None, *, copies: bool = True, tools: bool = True) -> ScriptedServer:
    """Return a server that repeats the code of each prompt, unless `leak` replies otherwise."""
    before: list[str] = []

    async def reply(request: HttpRequest) -> Reply:
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
