"""A stand-in for trtllm-serve, as small as the launchers' tests can do with: one fixed answer, no engine.

Told what to do wrong by variables: FAKE_LOAD_S (seconds before it listens), FAKE_LOG (a line that it writes), FAKE_EXIT
(exit code at once), FAKE_CRASH_AFTER (completions), FAKE_DEAF (ignores SIGTERM), FAKE_CHILD (starts a deaf process in a
session of its own and writes its number), FAKE_REFUSE (answers so many completions with 500 first), FAKE_FLAVOUR (main:
further flags).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

FLAGS = ["host", "port", "backend", "config", "server_role", "tp_size", "pp_size", "cp_size", "ep_size", "log_level"]
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(120)"
STATE = {"asked": 0, "workers": {}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    door: list[str] = []  # of an orchestrator: the addresses of the generation servers
    cluster: dict[str, int] | None = None
    role = "aggregated"

    def say(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.say(200, "")
        elif self.path == "/cluster_info":
            found = STATE["workers"]
            need = self.cluster or {}
            self.say(
                200, {"is_ready": all(len(found.get(r, ())) >= n for r, n in need.items()), "current_workers": found}
            )
        elif self.path == "/v1/models" and not self.door:
            self.say(200, {"object": "list", "data": [{"id": "org/model", "object": "model"}]})
        else:
            self.say(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/set":
            STATE["workers"].setdefault(body["role"] + "_servers", []).append(body)
            return self.say(200, {"result": True})
        STATE["asked"] += 1
        if STATE["asked"] > int(os.environ.get("FAKE_CRASH_AFTER", "1000000")):
            print("CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
            os._exit(9)
        if STATE["asked"] <= int(os.environ.get("FAKE_REFUSE", "0")):
            return self.say(500, {"detail": "Internal server error No 0 servers available"})
        if self.door or self.cluster:
            address = (self.door or [f"{w['host']}:{w['port']}" for w in STATE["workers"]["generation_servers"]])[0]
            request = urllib.request.Request(
                f"http://{address}{self.path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=10) as reply:
                    return self.say(200, json.load(reply))
            except OSError as error:
                return self.say(500, {"detail": f"Internal server error Cannot connect to host {error}"})
        choice = {
            "index": 0,
            "text": "#### 1",
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "1"},
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return self.say(200, {"id": "cmpl-1", "model": body["model"], "choices": [choice], "usage": usage})

    def log_message(self, *_: object) -> None: ...


def main(argv: list[str]) -> None:
    if argv[1:] == ["--help"]:
        main = os.environ.get("FAKE_FLAVOUR") == "main"
        flags = FLAGS if argv[0] == "serve" else ["server_start_timeout", "request_timeout"]
        flags = [*flags, *(["kv_cache_dtype", "telemetry / --no-telemetry"] if main else [])]
        print("Options:\n  -c, -t, -r\n" + "\n".join(f"  --{flag} TEXT" for flag in flags))
        return
    print(f"pid {os.getpid()}", flush=True)
    print(os.environ.get("FAKE_LOG", "loading the model"), flush=True)
    if "FAKE_EXIT" in os.environ:
        sys.exit(int(os.environ["FAKE_EXIT"]))
    if "FAKE_DEAF" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "FAKE_CHILD" in os.environ:
        child = subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=True, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        print(f"child {child.pid}", flush=True)
    argv = [word for word in argv if word != "--no-telemetry"]
    if argv[0] == "serve":
        given = dict(zip(argv[2::2], argv[3::2], strict=True))
        host, port = given["--host"], int(given["--port"])
        config = yaml.safe_load(Path(given.get("--config", os.devnull)).read_text()) or {}
        time.sleep(float(os.environ.get("FAKE_LOAD_S", "0")))
        server = ThreadingHTTPServer((host, port), Handler)
        if "disagg_cluster" in config:
            body = json.dumps({"role": given["--server_role"], "host": host, "port": port}).encode()
            uri = config["disagg_cluster"]["cluster_uri"]
            for _ in range(100):
                try:
                    headers = {"Content-Type": "application/json"}
                    urllib.request.urlopen(urllib.request.Request(f"{uri}/set", body, headers), timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
    else:
        config = yaml.safe_load(Path(argv[argv.index("-c") + 1]).read_text())
        if "disagg_cluster" in config:
            Handler.cluster = config["disagg_cluster"]["minimal_instances"]
        else:
            Handler.door = config["generation_servers"]["urls"]
            for address in [*config["context_servers"]["urls"], *Handler.door]:
                for _ in range(200):
                    try:
                        urllib.request.urlopen(f"http://{address}/health", timeout=1).close()
                        break
                    except OSError:
                        time.sleep(0.05)
        server = ThreadingHTTPServer((config["hostname"], config["port"]), Handler)
    print("listening", flush=True)
    server.serve_forever()


main(sys.argv[1:])
