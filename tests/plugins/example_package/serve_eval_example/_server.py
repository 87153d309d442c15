"""The server of the calculator: `python -m serve_eval_example._server PORT_FILE WRONG_BY`."""

from __future__ import annotations

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wrong_by = 0

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self._say(404, {"error": {"message": "only /v1/completions"}})
            return
        numbers = [int(number) for number in re.findall(r"\d+", asked["prompt"])]
        choice = {"index": 0, "text": f" {sum(numbers) + self.wrong_by}", "finish_reason": "stop"}
        self._say(
            200,
            {"id": "1", "object": "text_completion", "model": asked["model"], "choices": [choice]},
        )

    def do_GET(self) -> None:
        found = self.path == "/v1/models"
        self._say(
            200 if found else 404,
            {"object": "list", "data": [{"id": "calculator", "object": "model"}]},
        )

    def _say(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # a run opens all its connections at the same time


def main(port_file: Path, wrong_by: int) -> None:
    _Handler.wrong_by = wrong_by
    server = _Server(("127.0.0.1", 0), _Handler)
    partial = port_file.with_suffix(".partial")
    partial.write_text(str(server.server_port))
    partial.replace(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
