"""Print a table of what each version does, seen through the launcher and over HTTP.

Run `python -m tests.launchers.flavours`; with `write` the table goes into
docs/measured/trtllm-versions.md. The servers are the stand-in's. A row says what happened, not what
should happen.
"""

import asyncio
import os
import re
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import httpx

from serve_eval.errors import LaunchError, PlanError, ServeEvalError
from serve_eval.launchers import trtllm_disaggregated
from serve_eval.launchers._machine import local_gpus
from serve_eval.launchers._standin.options import ALL
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from tests.measured import stamp
from tests.standin.deployments import environment

PAGE = Path(__file__).resolve().parents[2] / "docs/measured/trtllm-versions.md"
BEGIN, END = "<!-- flavours: begin -->\n", "<!-- flavours: end -->\n"
COLUMNS = (
    "perf metrics",
    "discovery",
    "key between servers",
    "while it starts",
    "`/v1/models` of the orchestrator",
)
NAMES = {"old": "before November 2025", "v12": "1.2", "main": "main, 2026"}
REQUESTS = 4
LOAD_S = 1.0


class Starting(threading.Thread):
    """A thread that records the first answer of a server that loads."""

    def __init__(self, log_dir):
        super().__init__(daemon=True)
        self.script, self.seen, self.over = log_dir / "commands.sh", "", threading.Event()

    def run(self):
        refused = 0
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while not self.over.wait(0.05):
                try:
                    port = re.findall(r" --port (\d+)", self.script.read_text())[0]
                    reply = client.get(f"http://127.0.0.1:{port}/health")
                except (OSError, IndexError):
                    continue
                except httpx.TransportError:
                    refused += 1
                    continue
                state = reply.headers.get("x-trtllm-server-state")
                starting = (
                    f"HTTP {reply.status_code}, `{state}`" if state else f"HTTP {reply.status_code}"
                )
                self.seen = (
                    starting
                    if reply.status_code != 200
                    else "refuses connections"
                    if refused
                    else "nothing"
                )
                return


def table():
    """Return the lines of the table."""
    rows = [f"| version | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    return [*rows, *(f"| {NAMES[flavour]} | {' | '.join(row(flavour))} |" for flavour in ALL)]


def row(flavour):
    """Return the cells of one version."""
    with tempfile.TemporaryDirectory() as folder, _around(flavour, Path(folder)):
        place = Path(folder)
        perf, key, starting, models = _first(place / "first/logs")
        return [perf, _discoveries(place), f"{key}; {_without_key(place)}", starting, models]


@contextmanager
def _around(flavour, folder):
    env = environment(flavour, load_s=LOAD_S, STANDIN_POLL_S="0.1")
    env |= {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    with (
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(tempfile, "tempdir", None),
        mock.patch.object(local_gpus, "memory_used", return_value=None),
    ):
        yield


def _launched(log_dir, story, **options):
    said = []
    context = LaunchContext(model="org/model", log_dir=log_dir, notify=said.append)
    times = {"ready_timeout_s": 20.0, "answer_timeout_s": 4.0}
    given = registry.check_options(trtllm_disaggregated.launch, {**times, **options}, "launcher")

    async def tell():
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**given)
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell()), said


def _first(log_dir):
    starting = Starting(log_dir)
    starting.start()
    try:
        (perf, models), said = _launched(log_dir, _asked, perf_metrics=True)
    finally:
        starting.over.set()
        starting.join(5)
    lines = sum(path.read_bytes().count(b"\n") for path in log_dir.rglob("perf_metrics-*.jsonl"))
    # The first completion of a launch has a line too.
    files = f"{lines - 1} of {REQUESTS} requests" if lines else "nothing"
    key = (
        "one for each launch"
        if any("internal_request_auth_key" in line for line in said)
        else "none"
    )
    return f"{perf}; in files: {files}", key, starting.seen, models


async def _asked(endpoint):
    root, body = (
        endpoint.base_url.removesuffix("/v1"),
        {"model": "m", "prompt": "p", "max_tokens": 4},
    )
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.get(f"{root}/perf_metrics")).read()  # drop those of the start
        for _ in range(REQUESTS):
            assert (await client.post(f"{root}/v1/completions", json=body)).status_code == 200
        metrics, models = (
            await client.get(f"{root}/perf_metrics"),
            await client.get(f"{root}/v1/models"),
        )
        servers = dict[str, str](endpoint.info.servers)
        behind = await client.get(f"{servers['context_0']}/v1/models")
    same = models.status_code == 200 and _ids(models) == _ids(behind)
    told = (
        f"{len(metrics.json())} of {REQUESTS} requests"
        if metrics.status_code == 200
        else "no such route"
    )
    return (
        f"`GET /perf_metrics`: {told}",
        f"HTTP {models.status_code}{', those of a context server' * same}",
    )


def _ids(models):
    return [one["id"] for one in models.json()["data"]]


def _discoveries(place):
    wanted = {
        "on loopback": {"discovery": True},
        "beyond it": {"discovery": True, "host": "0.0.0.0"},
    }
    return "; ".join(
        f"{name}: {_outcome(place / name, options)}" for name, options in wanted.items()
    )


def _outcome(place, options):
    async def nothing(endpoint):
        pass

    try:
        _launched(place / "logs", nothing, **options)
    except PlanError:
        return "refused before the start"
    except LaunchError as error:
        return f"ends: {str(error).splitlines()[0].rpartition(': ')[2]}"
    return "works"


def _without_key(place):
    async def nothing(endpoint):
        await asyncio.sleep(0)

    found = []
    for enforced in ("0", "1"):
        logs = place / f"key{enforced}/logs"
        with mock.patch.dict(os.environ, {"STANDIN_AUTH_ENFORCED": enforced}):
            try:
                _launched(logs, nothing, auth_key=False)
                warned = any("FutureWarning" in path.read_text() for path in logs.glob("*.log"))
                found.append("a warning" if warned else "works")
            except ServeEvalError as error:
                named = "requires a key" in str(error)
                found.append(
                    "where it is required, an error with the cause"
                    if named
                    else str(error).splitlines()[0]
                )
    return f"without one: {', '.join(dict.fromkeys(found))}"


def main():
    began, lines = time.monotonic(), table()
    sys.stdout.write("\n".join(lines) + "\n")
    if sys.argv[1:] == ["write"]:
        text = PAGE.read_text()
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        written = text[:start] + "\n".join(lines) + "\n" + text[end:]
        PAGE.write_text(stamp(written, "python -m tests.launchers.flavours write"))
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
