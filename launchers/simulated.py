"""A simulated endpoint: a small local server that looks the right answers up; there is no model, and no GPU is used."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from launchers import _meanings
from launchers._process.own_server import check_installed, own_server
from launchers._simulated.faults import Fault, out_of_range
from launchers._simulated.prompt_logprobs import Form, Telling
from serve_eval.errors import LaunchError, PlanError
from serve_eval.schema import Endpoint, LaunchContext, ServerInfo
from serve_eval.schema.prompt_hash import uniform

MEANINGS = _meanings.SIMULATED


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The one command line that `launch` would start with these options. Raises PlanError for one that is out of
    range or contradicts another, and without what serves it."""
    check_installed("simulated")
    problems = [f"launcher.simulated.{name} {message}" for name, message in out_of_range(options)]
    if problems:
        raise PlanError(problems)
    defaults = {name: parameter.default for name, parameter in inspect.signature(launch).parameters.items()}
    probability(*({**defaults, **options}[name] for name in ("accuracy", "flip_rate", "seed")))
    command = [sys.executable, "-m", "launchers._simulated", "--model", context.model or "simulated"]
    command += ["--answers", str(_answers(context)), "--ready-file", str(_ready(context))]
    for name, value in options.items():
        if name in ("accuracy", "flip_rate") or value == inspect.signature(launch).parameters[name].default:
            continue
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    return [command]


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    accuracy: float | dict[str, float] = 0.75,
    flip_rate: float | None = None,
    seed: int = 0,
    run: int = 0,
    varied: bool = False,
    damage: float = 0.0,
    latency_s: float = 0.0,
    latency_jitter_s: float = 0.0,
    failure_rate: float = 0.0,
    failure_kind: Fault = "500",
    failures_per_prompt: int = 0,
    truncate_rate: float = 0.0,
    empty_rate: float = 0.0,
    crash_after: int | None = None,
    context_tokens: int | None = None,
    any_model: bool = False,
    strict_fields: bool = False,
    no_models: bool = False,
    no_chat: bool = False,
    no_completions: bool = False,
    no_images: bool = False,
    no_guided: bool = False,
    no_tools: bool = False,
    prompt_logprobs: Form = "none",
    begins_with: str = "",
    tells_beginning: Telling = "none",
    puts_beginning: bool = False,
    tokens_per_step: float | None = None,
) -> AsyncIterator[Endpoint]:
    """Starts the simulator on a free port of 127.0.0.1 and yields its endpoint.

    `accuracy` is the probability of a right answer, for all tasks or by task name; `flip_rate` the share of the prompts
    that are judged differently in two runs that differ in `run` alone (None: every prompt is right with the probability
    `accuracy`). `damage` is the share of the right answers that are lost. The faults are told in
    `launchers._simulated.config.SimulatorConfig`. Raises PlanError when an option is out of range or two contradict
    each other, LaunchError when the server does not start.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    if context.write_answer_file is None:
        raise LaunchError("the simulated endpoint needs the answers of the tasks, and there are none here")
    [command] = commands(context, **options)
    chance = probability(accuracy, flip_rate, seed)
    context.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    context.write_answer_file(_answers(context), chance)
    log_file = context.log_dir / "simulated.log"
    async with own_server(command, ready_file=_ready(context), log_file=log_file) as (url, server):
        info = ServerInfo(launcher="simulated", pid=server.pid, log_file=str(log_file))
        yield Endpoint(base_url=url, model=context.model or "simulated", info=info)


def beginning(
    *, begins_with: str = "", tells_beginning: Telling = "none", puts_beginning: bool = False, **_: object
) -> str | bool | None:
    """Return the token that begins a text to the model, which need not run; True where the server puts it there."""
    return True if puts_beginning else begins_with if tells_beginning != "none" else None


def probability(accuracy: float | dict[str, float], flip_rate: float | None, seed: int) -> Callable[[str, str], float]:
    """(task name, sample id) -> probability of a right answer, always the same for the same seed.

    Without `flip_rate` it is the accuracy for every prompt. With it, a share u = 3 flip_rate of the prompts has a
    probability that is uniform in [0, 1] (two draws of such a prompt differ with probability 1/3) and the others have 1
    or 0, so that the mean is the accuracy. Raises LaunchError when there is no such mixture or a task has no accuracy.
    """
    known = accuracy if isinstance(accuracy, dict) else {}
    by_task = {task: _mixture(value, flip_rate) for task, value in known.items()}
    common = None if isinstance(accuracy, dict) else _mixture(accuracy, flip_rate)

    def of(task: str, sample_id: str) -> float:
        mixture = common or by_task.get(task)
        if mixture is None:
            raise LaunchError(f"simulated: accuracy has no entry for the task {task!r}, only for {', '.join(known)}")
        if flip_rate is None:
            return mixture[1]
        share, sure = mixture
        key = f"{seed}:{task}:{sample_id}"
        if uniform(f"share:{key}") < share:
            return uniform(f"unsure:{key}")
        return 1.0 if uniform(f"sure:{key}") < sure else 0.0

    return of


def _mixture(accuracy: float, flip_rate: float | None) -> tuple[float, float]:
    """The share of the prompts with a uniform probability, and the mean of the others."""
    if not 0.0 <= accuracy <= 1.0:
        raise PlanError(f"simulated: an accuracy of {accuracy:g} is not between 0 and 1")
    if flip_rate is None:
        return 0.0, accuracy
    share = 3.0 * flip_rate
    if not 0.0 <= share <= 1.0:
        raise PlanError(f"simulated: a flip_rate of {flip_rate:g} is not between 0 and 1/3")
    if not share / 2 <= accuracy <= 1.0 - share / 2:
        raise PlanError(
            f"simulated: with a flip_rate of {flip_rate:g}, {share:g} of the prompts are right half of the time, so "
            f"the accuracy lies between {share / 2:g} and {1.0 - share / 2:g} and cannot be {accuracy:g}"
        )
    sure = (accuracy - share / 2) / (1.0 - share) if share < 1.0 else 0.5
    return share, min(max(sure, 0.0), 1.0)


def _answers(context: LaunchContext) -> Path:
    return context.log_dir / "simulated.answers.jsonl"


def _ready(context: LaunchContext) -> Path:
    return context.log_dir / "simulated.url"
