"""A server of another engine for tests of its launcher: FILE KIND [words of a command line].

KIND sets its behaviour. llama-server, transformers and vllm have /health; llama-cpp-python answers
404 there. transformers refuses any model except the one it was started with, and lists none. vllm
hands a prompt over if it is asked to, and says in its answer what was handed to it.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KIND, *WORDS = sys.argv[1:]


def given(flag):
    return WORDS[WORDS.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health" and KIND != "llama-cpp-python":
            return self._answer(200, {"status": "ok"})
        if self.path == "/v1/models":
            listed = {
                "transformers": [],
                "llama-server": [{"id": "m", "owned_by": "llamacpp"}],
                "llama-cpp-python": [{"id": "m", "owned_by": "me", "permissions": []}],
                "vllm": [{"id": "m", "owned_by": "vllm"}],
            }
            return self._answer(200, {"object": "list", "data": listed[KIND]})
        return self._answer(404, {"detail": "Not Found"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if KIND == "transformers" and asked["model"] != WORDS[1]:
            return self._answer(400, {"detail": f"Server is pinned to {WORDS[1]}"})
        handed = asked.get("kv_transfer_params", {})
        text = f"4 {handed['from']}" if "from" in handed else "4"
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        body = {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        if handed.get("do_remote_decode"):
            body["kv_transfer_params"] = {"from": given("--port")}
        return self._answer(200, body)

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    print("started with", *WORDS, flush=True)
    ThreadingHTTPServer((given("--host"), int(given("--port"))), Handler).serve_forever()
