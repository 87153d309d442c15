"""Flavours of a sound model that thinks, on the stand-in in this process, and of a damaged one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.generation import ThoughtsForm
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig

SHORT, LONG = 60, 600
"""Words of short and of long thoughts, of 1.2 tokens each."""
PARSER = {"reasoning_parser": "deepseek-r1"}
NONE: Mapping[str, Any] = {}
FLAVOURS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "never": (NONE, NONE),
    "field": (PARSER, {"thinks": "always", "thoughts": ThoughtsForm(words=SHORT)}),
    "inline": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(words=SHORT)}),
    "opened": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(opened=True, words=SHORT)}),
    "field_long": (PARSER, {"thinks": "always", "thoughts": ThoughtsForm(words=LONG)}),
    "inline_long": (NONE, {"thinks": "always", "thoughts": ThoughtsForm(words=LONG)}),
    "opened_long": (
        NONE,
        {"thinks": "always", "thoughts": ThoughtsForm(opened=True, words=LONG)},
    ),
    "hybrid_field": (PARSER, {"thinks": "as_asked", "thoughts": ThoughtsForm(words=LONG)}),
    "hybrid_opened": (
        NONE,
        {"thinks": "as_asked", "thoughts": ThoughtsForm(opened=True, words=LONG)},
    ),
}
"""By name: the arguments of the model, and the faults of the server, which are its thoughts.
`never` is the control."""


@asynccontextmanager
async def serve_flavour(
    name: str, model: MadeUpModel | None = None, *, tool_parser: str | None = "qwen3", **faults: Any
) -> AsyncIterator[str]:
    """Serve a flavour with further `faults`, and yield its base URL."""
    args, thoughts = FLAVOURS[name]
    args = {**args, "guided_decoding_backend": "xgrammar"}
    config = WorkerConfig(model="M", host="127.0.0.1", port=0, args=args, tool_parser=tool_parser)
    brain = model or MadeUpModel(skilled=True)
    app = create(config, brain, Faults(**{**thoughts, **faults}), "main")
    async with serve_app(app) as url:
        yield url


@contextmanager
def flavour_in_thread(name: str, model: MadeUpModel | None = None, **more: Any) -> Iterator[str]:
    """Serve a flavour in another thread, since commands want the main one, and yield its URL."""
    found: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        async with serve_flavour(name, model, **more) as url:
            ended = asyncio.Event()
            found.set_result((url, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    url, loop, ended = found.result(timeout=30)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
