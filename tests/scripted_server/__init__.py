"""One OpenAI-compatible server for all tests, whose answers are a script: see docs/testing.md for
how to write one.
"""

from tests.scripted_server.replies import (
    Reply,
    TokenLogprob,
    after,
    answer,
    fail,
    hand_over,
    hang_up,
    json_reply,
    logprobs,
    models,
    raw,
    reset,
    stall,
    stream,
    tool_call,
    version,
    when,
)
from tests.scripted_server.request import HttpRequest
from tests.scripted_server.server import (
    EVERY_PATH,
    Responder,
    Script,
    ScriptedServer,
    serve,
    serve_in_thread,
)

__all__ = [
    "EVERY_PATH",
    "HttpRequest",
    "Reply",
    "Responder",
    "Script",
    "ScriptedServer",
    "TokenLogprob",
    "after",
    "answer",
    "fail",
    "hand_over",
    "hang_up",
    "json_reply",
    "logprobs",
    "models",
    "raw",
    "reset",
    "serve",
    "serve_in_thread",
    "stall",
    "stream",
    "tool_call",
    "version",
    "when",
]
