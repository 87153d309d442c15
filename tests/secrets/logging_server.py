"""A stand-in for a trtllm-serve that logs request heads and its variables.

Run `serve MODEL --host HOST --port PORT`. It ends on its own with request number ENDS_AT.
"""

import itertools
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_numbers = itertools.count(1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._reply({"data": [{"id": sys.argv[2]}], "version": "1.2"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(f"headers {dict(self.headers)}", flush=True)
        if next(_numbers) == int(os.environ.get("ENDS_AT", "0")):
            os._exit(1)
        choice = {"index": 0, "finish_reason": "length" if body["max_tokens"] < 4 else "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 2}
        self._reply(
            {"choices": [{**choice, "message": {"content": "42"}, "text": "42"}], "usage": usage}
        )

    def _reply(self, told):
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if "--help" in sys.argv:
        print("Usage: trtllm-serve serve [OPTIONS] MODEL\n\n  --host TEXT\n  --port INTEGER")
        sys.exit()
    flags = dict(zip(sys.argv, sys.argv[1:], strict=False))
    print(f"variables {dict(os.environ)}", flush=True)
    ThreadingHTTPServer((flags["--host"], int(flags["--port"])), _Handler).serve_forever()
