"""A server of another engine for tests of its launcher: FILE KIND [words of a command line].

KIND sets its behaviour. llama-server and transformers have /health; llama-cpp-python answers 404
there. transformers refuses any model except the one it was started with, and lists none.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KIND, *WORDS = sys.argv[1:]


def given(flag: str) -> str:
    return WORDS[WORDS.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health" and KIND != "llama-cpp-python":
            return self._answer(200, {"status": "ok"})
        if self.path == "/v1/models":
            listed = {
                "transformers": [],
                "llama-server": [{"id": "m", "owned_by": "llamacpp"}],
                "llama-cpp-python": [{"id": "m", "owned_by": "me", "permissions": []}],
            }
            return self._answer(200, {"object": "list", "data": listed[KIND]})
        return self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if KIND == "transformers" and asked["model"] != WORDS[1]:
            return self._answer(400, {"detail": f"Server is pinned to {WORDS[1]}"})
        choice = {"index": 0, "text": "4", "finish_reason": "stop"}
        return self._answer(
            200, {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        )

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    print("started with", *WORDS, flush=True)
    ThreadingHTTPServer((given("--host"), int(given("--port"))), Handler).serve_forever()
