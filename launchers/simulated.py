"""A simulated endpoint: a real HTTP server on a loopback socket that is told the answers. There is no model in it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from launchers._answers import probability
from launchers._process import server_process
from launchers._simulator import Config, FailureKind
from serve_eval.errors import LaunchError
from serve_eval.schema import Endpoint, LaunchContext

READY_S = 30.0


def commands(
    context: LaunchContext, *, accuracy: object = None, flip_rate: object = None, **faults: Any
) -> list[list[str]]:
    """The command line that would be started; `accuracy` and `flip_rate` go into the answer file it reads."""
    config = Config(answers=str(context.log_dir / "answers.jsonl"), model=context.model or "simulated", **faults)
    changed = {name: value for name, value in msgspec.to_builtins(config).items() if value != _DEFAULTS.get(name)}
    text = msgspec.json.encode(changed).decode()
    port_file = str(context.log_dir / "simulator.url")
    return [[sys.executable, "-m", "launchers._simulator", "--config", text, "--port-file", port_file]]


_DEFAULTS = msgspec.to_builtins(Config(answers=""))


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    accuracy: float | dict[str, float] = 0.75,
    flip_rate: float | None = None,
    seed: int = 0,
    run: int = 0,
    damage: float = 0.0,
    latency_s: float = 0.0,
    failure_rate: float = 0.0,
    failure_kind: FailureKind = "500",
    failures_per_prompt: int = 0,
    truncate_rate: float = 0.0,
    empty_rate: float = 0.0,
    context_tokens: int | None = None,
    list_models: bool = True,
) -> AsyncIterator[Endpoint]:
    """Starts the simulator and yields its endpoint.

    Every prompt of a task is answered right with probability `accuracy` (one number, or one per task); with `flip_rate`
    a share of the prompts is unstable between runs and the others are not. `damage` takes that share of the right
    answers away. Raises LaunchError when the numbers do not fit together or the server does not start.
    """
    if context.write_answer_file is None:
        raise LaunchError("the simulated endpoint needs the answers of a run; it cannot be started alone")
    faults = {
        "seed": seed,
        "run": run,
        "damage": damage,
        "latency_s": latency_s,
        "failure_rate": failure_rate,
        "failure_kind": failure_kind,
        "failures_per_prompt": failures_per_prompt,
        "truncate_rate": truncate_rate,
        "empty_rate": empty_rate,
        "context_tokens": context_tokens,
        "list_models": list_models,
    }

    def chance(task: str, sample_id: str) -> float:
        mean = accuracy if isinstance(accuracy, float) else accuracy.get(task)
        if mean is None:
            raise LaunchError(f"launcher.accuracy: no value for the task {task!r}")
        try:
            return probability(seed, task, sample_id, accuracy=mean, flip_rate=flip_rate)
        except ValueError as error:
            raise LaunchError(f"launcher: {error}") from error

    context.write_answer_file(context.log_dir / "answers.jsonl", chance)
    port_file = context.log_dir / "simulator.url"
    port_file.unlink(missing_ok=True)
    (command,) = commands(context, **faults)
    log_file = context.log_dir / "simulator.log"
    async with server_process(command, name="the simulated endpoint", log_file=log_file) as server:
        base_url = await server.wait_for_file(Path(port_file), READY_S)
        await server.wait_until_healthy(base_url.removesuffix("/v1") + "/health", READY_S)
        info = {"launcher": "simulated", "note": "no model: the answers were given to it"}
        yield Endpoint(base_url=base_url, model=context.model or "simulated", info=info)
