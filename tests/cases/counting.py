"""An endpoint that counts the chat prompts that begin with "Question", and all text prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.scripted_server import (
    HttpRequest,
    Reply,
    ScriptedServer,
    after,
    answer,
    fail,
    models,
    version,
)


class Counting:
    """Answer each chat prompt with its last word, and count requests by prompt.

    `refused` prompts get a 400; the endpoint reports `version`.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.continued = 0
        self.refused: set[str] = set()
        self.version = "1.0"
        self.url = ""
        self.pause_s = 0.0

    def taken(self) -> Counter[str]:
        """Return the requests since the last call, by prompt."""
        asked, self.asked = self.asked, Counter()
        return asked

    def reply(self, request: HttpRequest) -> Reply:
        if not request.chat:
            self.continued += request.max_tokens > 2  # shorter requests precede a run
            return answer(" 1")
        if request.prompt.startswith("Question"):
            self.asked[request.prompt] += 1
        said = answer(request.prompt.split()[-1].rstrip("?"))
        return after(self.pause_s, fail(400, "no") if request.prompt in self.refused else said)


@contextmanager
def counting() -> Iterator[Counting]:
    """Serve the endpoint on a free port, in a thread, until the end of the block."""
    endpoint = Counting()
    server = ScriptedServer(
        endpoint.reply,
        routes={"/v1/models": models("m"), "/version": lambda request: version(endpoint.version)},
    )
    with server.serve_in_thread() as endpoint.url:
        yield endpoint
