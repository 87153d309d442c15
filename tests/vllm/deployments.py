"""Start deployments of the real vLLM, also with weights that are rounded or compressed.

`int3` rounds the linear layers to three bits and back. `w8a8` has weights of eight bits and rounds
activations when it computes; `w4a16` has weights of four bits, with a scale per group of 32
columns. The two formats are those of the compressed-tensors library.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from serve_eval.errors import LaunchError
from serve_eval.launchers._embedded import model
from serve_eval.launchers._logs.causes import VLLM as ENGINE
from serve_eval.launchers._logs.last_error import explain
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import Endpoint, LaunchContext, Spec

GROUP = 32


def write_model(kind, folder):
    """Write the model to a new folder and return it."""
    shutil.copytree(WEIGHTS, folder)
    linear = {
        name: tensor
        for name, tensor in model.read(WEIGHTS).items()
        if name.endswith("_proj.weight")
    }
    kept = {n: t for n, t in model.read(WEIGHTS).items() if n not in linear}
    found = dict(kept)
    for name, tensor in linear.items():
        found |= _MAKE[kind](name.removesuffix(".weight"), tensor)
    _write_safetensors(folder / "model.safetensors", found)
    if kind in _SCHEMES:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = _SCHEMES[kind]
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _round(name, weight):
    return {f"{name}.weight": model.round_weight(weight, 3, None)}


def _quantise_8(name, weight):
    scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    values = np.rint(weight / scale).astype(np.int8)
    return {f"{name}.weight": values, f"{name}.weight_scale": scale.astype(np.float32)}


def _quantise_4(name, weight):
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // GROUP, GROUP)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(7)
    values = np.clip(np.rint(groups / scale), -8, 7).astype(np.int64).reshape(rows, columns)
    packed = np.zeros((rows, columns // 8), dtype=np.int64)
    for place in range(8):
        packed |= (values[:, place::8] + 8) << (4 * place)
    return {
        f"{name}.weight_packed": packed.astype(np.uint32).view(np.int32),
        f"{name}.weight_scale": scale.reshape(rows, -1).astype(np.float32),
        f"{name}.weight_shape": np.array([rows, columns], dtype=np.int64),
    }


_MAKE = {"int3": _round, "w8a8": _quantise_8, "w4a16": _quantise_4}


def _scheme(form, weight, inputs):
    base = {"type": "int", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**base, "dynamic": False, **weight},
                "input_activations": None if inputs is None else {**base, **inputs},
            }
        },
    }


_SCHEMES = {
    "w8a8": _scheme(
        "int-quantized",
        {"num_bits": 8, "strategy": "channel"},
        {"num_bits": 8, "strategy": "token", "dynamic": True},
    ),
    "w4a16": _scheme(
        "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP}, None
    ),
}
_TYPES = {"int8": "I8", "int32": "I32", "int64": "I64"}


def _write_safetensors(path, tensors):
    """Write a file of the format that `launchers/_embedded/model.py` reads; floats as BF16."""
    header = {}
    parts = []
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype == np.float32:
            kind, raw = "BF16", _to_bfloat16(tensor).tobytes()
        else:
            kind, raw = _TYPES[tensor.dtype.name], tensor.tobytes()
        end = at + len(raw)
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        parts.append(raw)
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))


def _to_bfloat16(values):
    """Return the upper halves of the numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    return np.asarray(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))


ROOT = Path(__file__).resolve().parents[2]
VLLM = Path(os.environ.get("SERVE_EVAL_VLLM", ROOT / ".venv-vllm"))
"""The folder that `make test-vllm` builds."""
PYTHON = VLLM / "bin/python"
MODEL = "embedded"
READY_S = 600.0
OPTIONS = {
    "model": str(WEIGHTS),
    "max_model_len": 512,
    "block_size": 32,
    "eager": True,
    "dtype": "float32",  # three times as fast as bfloat16 on a CPU without AVX-512
    # 65,536 tokens. What VLLM_CPU_KVCACHE_SPACE allows, a gigabyte, is 524,288 of this model.
    "extra_args": ["--num-gpu-blocks-override", "2048"],
    "ready_timeout_s": READY_S,
    "env": {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    },
}
WARM = Path(__file__).with_name("warm.py")
WARM_S = 180.0
PLUGIN = Path(__file__).with_name("plugin")
NIXL = "NixlConnector"
EXTRA = "kv_connector_extra_config"
ONE_THREAD = {"num_threads": 0}
"""NIXL with one thread for each server. More of them poll without a pause."""


def aggregated(**more):
    """Return a launcher of one server."""
    return Spec(name="vllm", options={**OPTIONS, **more})


def disaggregated(**more):
    """Return a launcher of one context and one generation server."""
    options = {
        **OPTIONS,
        "gpus": [],
        "prefix_caching": False,
        "connector_config": {EXTRA: ONE_THREAD},
        **more,
    }
    return Spec(name="vllm_disaggregated", options=options)


def decoding(side_port, *, check=True, **more):
    """Return a launcher of a further generation server, which no orchestrator knows.

    `check` False lets it fetch from a server with other weights.
    """
    extra = {**ONE_THREAD, **({} if check else {"enforce_handshake_compat": False})}
    config = {"kv_connector": NIXL, "kv_role": "kv_consumer", EXTRA: extra}
    side = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
    }
    own = {
        "prefix_caching": False,
        "env": {**OPTIONS["env"], **side},
        "extra_args": [*OPTIONS["extra_args"], "--kv-transfer-config", json.dumps(config)],
    }
    return aggregated(**own, **more)


NO_KERNEL = ("cpu_kernel", "cpu_instructions")
"""The rows of start_failures.yaml that say that a CPU cannot run a server."""


class NoKernelError(LaunchError):
    """A server that did not start, as its CPU lacks a kernel. The message is the server's line."""


class _Kept(NamedTuple):
    endpoint: Endpoint
    end: asyncio.Event
    task: asyncio.Task[None]


class Deployments:
    """Starts deployments and ends them, each by its name. They run in a thread.

    All servers are forked from one process, `warm.py`, which saves nine tenths of the time of a
    start.
    """

    def __init__(self, folder):
        self._folder, self._kept = folder, dict[str, _Kept]()
        self._starts = itertools.count()
        self._socket = Path(tempfile.mkdtemp(prefix="vllm")) / "socket"
        self._log = (folder / "warm.log").open("w")
        self._warm = subprocess.Popen(
            [PYTHON, WARM, "serve", self._socket],
            env={**os.environ, **OPTIONS["env"], "PYTHONPATH": str(PLUGIN)},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self, **launchers):
        """Start deployments and wait until they answer.

        The first that does not start raises its LaunchError, a NoKernelError if this CPU cannot run
        it. Those before it stay up.
        """
        specs = {
            name: replace(spec, options={**spec.options, "command": self.command})
            for name, spec in launchers.items()
        }
        starting = asyncio.run_coroutine_threadsafe(self._start_all(specs), self._loop)
        starting.result(READY_S + 60)

    @property
    def command(self):
        """The command that has a server forked; it works once `wait_until_warm` returned."""
        return [str(PYTHON), str(WARM), "start", str(self._socket)]

    def wait_until_warm(self):
        """Wait until vLLM is imported."""
        deadline = time.monotonic() + WARM_S
        while not self._socket.exists():
            if self._warm.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "warm.log").read_text()
                raise RuntimeError(f"vLLM could not be imported: {log[-2000:]}")
            time.sleep(0.1)

    @property
    def names(self):
        """The names of the deployments that run."""
        return tuple(self._kept)

    def __getitem__(self, name):
        return self._kept[name].endpoint

    def stop(self, *names):
        """End deployments; without names, all."""
        ending = []
        for name in names or self.names:
            kept = self._kept.pop(name)
            self._loop.call_soon_threadsafe(kept.end.set)
            ending.append(asyncio.run_coroutine_threadsafe(_wait(kept.task), self._loop))
        for future in ending:
            future.result(60)

    def close(self):
        """End all deployments and the thread."""
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)
            self._loop.close()
            assert self._warm.stdin is not None
            self._warm.stdin.close()
            self._warm.wait(60)
            self._log.close()
            shutil.rmtree(self._socket.parent)

    async def _start_all(self, launchers):
        """Start deployments in turn, which takes less time than all at once on two cores."""
        for name, spec in launchers.items():
            self._kept[name] = await self._start(name, spec)

    async def _start(self, name, spec):
        ready, end = asyncio.get_running_loop().create_future(), asyncio.Event()
        task = asyncio.create_task(self._keep(name, spec, ready, end))
        try:
            await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if not ready.done():
            await task
        return _Kept(await ready, end, task)

    async def _keep(self, name, spec, ready, end):
        await asyncio.to_thread(self.wait_until_warm)
        logs = self._folder / f"{name}_{next(self._starts)}"
        context = LaunchContext(model=MODEL, log_dir=logs)
        try:
            async with load_launcher(spec.name).launch(context, **spec.options) as endpoint:
                ready.set_result(endpoint)
                await end.wait()
        except LaunchError as error:
            if not ready.done() and (line := find_missing_kernel(logs)) is not None:
                raise NoKernelError(line) from error
            raise


async def _wait(task):
    await task


def find_missing_kernel(logs):
    """Return the line in which a server says that its CPU lacks a kernel; None if none says so.

    Only the error that ended a server counts, never what the server went on after.
    """
    for file in sorted(logs.glob("*.log")):
        found = explain(file.read_text(errors="replace"), ENGINE)
        if found is not None and found.cause is not None and found.cause.name in NO_KERNEL:
            return found.line
    return None


def read_counter(url, name):
    """Return the sum of a counter in a server's /metrics; `name` may include labels."""
    base, _, labels = name.partition("{")
    text = httpx.get(url + "/metrics", trust_env=False, timeout=30).text
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(base) and labels.rstrip("}") in line
    )
