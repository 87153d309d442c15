"""Does our client keep a GPU as busy as a loop that does nothing but send? On a machine that has one: make test-gpu.

A Llama with random weights is served by `transformers serve --continuous-batching`. The same requests go to it from a
bare loop and from an evaluation, and nvidia-smi tells how busy the GPU was meanwhile.
"""

from __future__ import annotations

import asyncio
import http.client
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launchers import embedded, transformers_serve
from serve_eval.asking import request_of
from serve_eval.client.wire import encode
from serve_eval.evaluation import evaluate
from serve_eval.preparation import prepare
from serve_eval.schema import Endpoint, LaunchContext, Limits, Plan, Spec
from tests.peers.peers import PEERS, PYTHON

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
REQUESTS = 512
IN_FLIGHT = 64
NEARLY = 0.9
"""The share of the bare loop's requests per second, and of its use of the GPU, that an evaluation has to reach."""


def _missing() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here: there is no nvidia-smi"
    if not PYTHON.exists():
        return f"{PYTHON} is not there (make test-peers builds it)"
    tried = subprocess.run([PYTHON, "-c", "import torch, transformers; assert torch.cuda.is_available()"])
    return f"the torch of {PYTHON} sees no GPU" if tried.returncode else None


@contextmanager
def _gpu_use() -> Iterator[list[float]]:
    """The use of the first GPU in percent, twice a second for the length of the block."""
    seen: list[float] = []
    over = threading.Event()

    def watch() -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--id=0"]
        while not over.wait(0.5):
            seen.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _bare_loop(url: str, bodies: list[bytes]) -> float:
    """Seconds that the requests take from threads with a connection each, which look at nothing but the status."""
    address = url.removeprefix("http://").removesuffix("/v1")
    left = iter(bodies)
    lock = threading.Lock()

    def send() -> None:
        connection = http.client.HTTPConnection(address, timeout=600)
        while True:
            with lock:
                body = next(left, None)
            if body is None:
                return
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200

    began = time.monotonic()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for done in [threads.submit(send) for _ in range(IN_FLIGHT)]:
            done.result()
    return time.monotonic() - began


def test_an_evaluation_keeps_the_gpu_as_busy_as_a_bare_loop(tmp_path: Path) -> None:
    if why := _missing():
        pytest.skip(why)
    model = tmp_path / "model"
    script = Path(__file__).with_name("random_model.py")
    subprocess.run([PYTHON, script, model, embedded.WEIGHTS], check=True)
    task = Spec(name="word_problems", options={"num_samples": REQUESTS})
    plan = Plan(
        model=str(model),
        launcher=Spec(name="external"),
        tasks=(task,),
        no_reference=True,
        limits=Limits(concurrency=IN_FLIGHT),
    )
    [prepared] = prepare(plan)
    requests = [request_of(prepared.task, sample) for sample in prepared.dataset.samples]
    bodies = [encode(request, str(model)) for request in requests]

    async def measured(endpoint: Endpoint) -> dict[str, tuple[float, float]]:
        """Requests per second and use of the GPU, of each way of asking."""
        found: dict[str, tuple[float, float]] = {}
        await asyncio.to_thread(_bare_loop, endpoint.base_url, bodies[:IN_FLIGHT])  # kernels are compiled, caches made
        with _gpu_use() as use:
            seconds = await asyncio.to_thread(_bare_loop, endpoint.base_url, bodies)
        found["bare loop"] = REQUESTS / seconds, sum(use) / len(use)
        running = replace(plan, launcher=Spec(name="external", options={"base_url": endpoint.base_url}))
        began = time.monotonic()
        with _gpu_use() as use:
            report = await evaluate(running, tmp_path / "run", environ={})
        found["serve-eval"] = REQUESTS / (time.monotonic() - began), sum(use) / len(use)
        result = report.tasks[0].result
        assert (result.scored, result.failed) == (REQUESTS, 0)
        return found

    async def story() -> dict[str, tuple[float, float]]:
        context = LaunchContext(model=str(model), log_dir=tmp_path / "logs", told=print)
        async with transformers_serve.launch(
            context,
            command=[str(PEERS / "bin/transformers")],
            device="cuda",
            dtype="bfloat16",
            continuous_batching=True,
            env={"HF_HUB_OFFLINE": "1"},
        ) as endpoint:
            return await measured(endpoint)

    found = asyncio.run(story())
    for name, (per_s, use) in found.items():
        print(f"{name}: {per_s:.1f} requests/s, GPU {use:.0f} % busy")
    (ideal_per_s, ideal_use), (per_s, use) = found["bare loop"], found["serve-eval"]
    assert per_s >= NEARLY * ideal_per_s
    assert use >= NEARLY * ideal_use
