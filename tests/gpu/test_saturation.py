"""Test that our client keeps a GPU as busy as a loop that only sends requests.

Run it with `make test-gpu` on a machine that has a GPU. `transformers serve --continuous-batching`
serves a Llama with random weights. A bare loop and an evaluation send it the same requests, and
nvidia-smi measures the use of the GPU.
"""

import asyncio
import http.client
import os
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.client.wire_format.wire import encode
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers import embedded, transformers_serve
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import LaunchContext, Limits, Plan, Spec
from serve_eval.storage.sessions import loads
from tests.peers.peers import PEERS, PYTHON

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
REQUESTS = 512
IN_FLIGHT = 64
NEARLY = 0.9
"""Share of the bare loop's requests per second and GPU use that an evaluation must reach."""


def _missing():
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here: there is no nvidia-smi"
    if why := _not_built():
        return why
    tried = subprocess.run([PYTHON, "-c", "import torch; assert torch.cuda.is_available()"])
    return f"the torch of {PYTHON} sees no GPU" if tried.returncode else None


def _not_built():
    if not (PEERS / "bin/transformers").exists():
        return f"{PEERS} has no transformers (make test-peers builds it)"
    return None


@contextmanager
def _gpu_use():
    """Yield the use of the first GPU in percent, twice a second, from its first to its last use.

    An evaluation does other things before and after its requests.
    """
    seen = []
    over = threading.Event()

    def watch():
        command = [
            "nvidia-smi",
            "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits",
            "--id=0",
        ]
        while not over.wait(0.5):
            seen.append(
                float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        used = [number for number, percent in enumerate(seen) if percent]
        seen[:] = seen[used[0] : used[-1] + 1] if used else []


def _bare_loop(url, bodies):
    """Return the seconds that the requests take from threads that check only the status.

    Each thread has one connection.
    """
    address = url.removeprefix("http://").removesuffix("/v1")
    left = iter(bodies)
    lock = threading.Lock()

    def send():
        with closing(http.client.HTTPConnection(address, timeout=600)) as connection:
            while True:
                with lock:
                    body = next(left, None)
                if body is None:
                    return
                connection.request(
                    "POST", "/v1/completions", body, {"Content-Type": "application/json"}
                )
                reply = connection.getresponse()
                reply.read()
                assert reply.status == 200

    began = time.monotonic()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for done in [threads.submit(send) for _ in range(IN_FLIGHT)]:
            done.result()
    return time.monotonic() - began


def _measured(
    folder,
    *,
    small,
    requests,
    use,
    **options,
):
    """Return requests per second and GPU use of each way to ask a model with random weights.

    Both cover only the time in which requests were sent.
    """
    model = folder / "model"
    script = Path(__file__).with_name("random_model.py")
    subprocess.run([PYTHON, script, model, embedded.WEIGHTS, *["--small"] * small], check=True)
    plan = Plan(
        model=str(model),
        launcher=Spec(name="external"),
        tasks=(Spec(name="word_problems", options={"num_samples": requests}),),
        no_reference=True,
        limits=Limits(concurrency=IN_FLIGHT),
    )
    [prepared] = prepare(plan)
    bodies = [
        encode(request_of(prepared.task, sample), str(model)) for sample in prepared.dataset.samples
    ]

    async def measured(endpoint):
        found = {}
        await asyncio.to_thread(
            _bare_loop, endpoint.base_url, bodies[:IN_FLIGHT]
        )  # compiles kernels and fills caches
        with use() as used:
            seconds = await asyncio.to_thread(_bare_loop, endpoint.base_url, bodies)
        found["bare loop"] = requests / seconds, used
        running = replace(
            plan, launcher=Spec(name="external", options={"base_url": endpoint.base_url})
        )
        with use() as used:
            report = await evaluate(running, folder / "run", environ={})
        result, [load] = report.tasks[0].result, loads(folder / "run")
        assert (result.scored, result.failed) == (requests, 0)
        found["serve-eval"] = requests / load.wall_s, used
        return found

    async def story():
        context = LaunchContext(model=str(model), log_dir=folder / "logs", notify=print)
        async with transformers_serve.launch(
            context,
            transformers_serve.TransformersOptions(
                command=[str(PEERS / "bin/transformers")],
                continuous_batching=True,
                env={"HF_HUB_OFFLINE": "1"},
                **options,
            ),
        ) as endpoint:
            return await measured(endpoint)

    found = asyncio.run(story())
    for name, (per_s, used) in found.items():
        busy = f", GPU {sum(used) / len(used):.0f} % busy" if used else ""
        print(f"{name}: {per_s:.1f} requests/s{busy}")
    return found


def test_an_evaluation_keeps_the_gpu_as_busy_as_a_bare_loop(tmp_path):
    if why := _missing():
        pytest.skip(why)
    found = _measured(
        tmp_path, small=False, requests=REQUESTS, use=_gpu_use, device="cuda", dtype="bfloat16"
    )
    (ideal_per_s, ideal_use), (per_s, use) = found["bare loop"], found["serve-eval"]
    assert ideal_use
    assert use
    assert per_s >= NEARLY * ideal_per_s
    assert sum(use) / len(use) >= NEARLY * sum(ideal_use) / len(ideal_use)


def test_the_measurement_itself_works_on_a_cpu(tmp_path, monkeypatch):
    """All steps except the GPU run, with a model of a million parameters; no figure is judged."""
    if why := _not_built():
        pytest.skip(why)
    # Where there is a GPU, the server's continuous batching uses it in spite of its device.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = _measured(
        tmp_path,
        small=True,
        requests=IN_FLIGHT,
        use=lambda: nullcontext([]),
        device="cpu",
        threads=1,
    )
    assert all(per_s > 0 for per_s, _ in found.values())


def test_the_use_of_a_gpu_is_taken_from_its_first_to_its_last(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi reports a different use each time."""
    told = tmp_path / "told"
    told.write_text("".join(f"{percent}\n" for percent in (0, 0, 80, 0, 90, 0)))
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f'#!/bin/sh\nuse=$(head -n 1 "{told}")\necho "${{use:-0}}"\nsed -i 1d "{told}"\n'
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with _gpu_use() as seen:
        while told.read_text():
            time.sleep(0.05)
    assert seen == [80.0, 0.0, 90.0]
