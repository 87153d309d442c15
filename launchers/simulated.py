"""Start a simulated endpoint: a local server that looks answers up, without a model or GPU."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers._process.server_process import check_installed, own_server
from serve_eval.launchers._simulated.answers import of_prompt
from serve_eval.launchers._simulated.config import SimulatedBehaviour
from serve_eval.plugins.setting import Setting
from serve_eval.processes.child_process import build_command
from serve_eval.schema import Endpoint, LaunchContext, Prompt, ServerInfo
from serve_eval.schema.media import uniform


@dataclass(frozen=True, kw_only=True)
class SimulatedOptions(SimulatedBehaviour):
    """Choose the share of right answers and the behaviour of the server.

    `flip_rate` compares two runs that differ only in `run`.
    """

    accuracy: Annotated[
        float | dict[str, float],
        Setting("Probability of a right answer: one number, or one per task."),
    ] = 0.75
    flip_rate: Annotated[
        float | None,
        Setting(
            "Share of the prompts that two runs judge differently. Not set: each prompt"
            " is drawn independently."
        ),
    ] = None


def commands(context: LaunchContext, options: SimulatedOptions) -> list[list[str]]:
    """Return the one command line that `launch` would start with these options.

    Raises PlanError if an option is out of range or contradicts another, or if the packages that
    the server needs are missing.
    """
    check_installed("simulated")
    if problems := [
        f"launcher.simulated.{name} {message}" for name, message in options.find_problems()
    ]:
        raise PlanError(problems)
    probability(options.accuracy, options.flip_rate, options.seed)
    command = build_command(
        "serve_eval.launchers._simulated", "--model", context.model or "simulated"
    )
    command += ["--answers", str(_answers(context)), "--ready-file", str(_ready(context))]
    for one in fields(SimulatedBehaviour):
        if (value := getattr(options, one.name)) != one.default:
            flag = f"--{one.name.replace('_', '-')}"
            command += [flag] if value is True else [flag, str(value)]
    return [command]


@asynccontextmanager
async def launch(context: LaunchContext, options: SimulatedOptions) -> AsyncIterator[Endpoint]:
    """Start the simulator on a free port of 127.0.0.1 and yield its endpoint.

    Raises PlanError if an option is out of range or two contradict each other, LaunchError if the
    server does not start.
    """
    if context.write_answer_file is None:
        raise LaunchError(
            "the simulated endpoint needs the answers of the tasks, and none are available here"
        )
    [command] = commands(context, options)
    chance = probability(options.accuracy, options.flip_rate, options.seed)
    context.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    context.write_answer_file(_answers(context), chance)
    log_file = context.log_dir / "simulated.log"
    async with own_server(command, ready_file=_ready(context), log_file=log_file) as (url, server):
        info = ServerInfo(launcher="simulated", pid=server.pid, log_file=str(log_file))
        yield Endpoint(base_url=url, model=context.model or "simulated", info=info)


def beginning(options: SimulatedOptions) -> str | bool | None:
    """Return the token at the beginning of a text, or True if the server adds it itself.

    The server need not run.
    """
    if options.puts_beginning:
        return True
    return options.begins_with if options.tells_beginning != "none" else None


def count_tokens(prompt: Prompt, options: SimulatedOptions) -> int:
    """Return the number of words of a prompt, which are the tokens of this server."""
    return of_prompt(prompt, None)


def probability(
    accuracy: float | dict[str, float], flip_rate: float | None, seed: int
) -> Callable[[str, str], float]:
    """Return a function of (task name, sample id) that gives the probability of a right answer.

    The probabilities depend only on the seed. Without `flip_rate`, every prompt has the accuracy as
    its probability. With it, a share u = 3 flip_rate of the prompts has a probability that is
    uniform in [0, 1], so that two draws of such a prompt differ with probability 1/3. The others
    have 1 or 0, so that the mean is the accuracy. Raises LaunchError if no such mixture exists or a
    task has no accuracy.
    """
    known = accuracy if isinstance(accuracy, dict) else {}
    by_task = {task: _mixture(value, flip_rate) for task, value in known.items()}
    common = None if isinstance(accuracy, dict) else _mixture(accuracy, flip_rate)

    def of(task: str, sample_id: str) -> float:
        mixture = common or by_task.get(task)
        if mixture is None:
            raise LaunchError(
                f"simulated: accuracy has no entry for the task {task!r}, only for"
                f" {', '.join(known)}"
            )
        if flip_rate is None:
            return mixture[1]
        share, sure = mixture
        key = f"{seed}:{task}:{sample_id}"
        if uniform(f"share:{key}") < share:
            return uniform(f"unsure:{key}")
        return 1.0 if uniform(f"sure:{key}") < sure else 0.0

    return of


def _mixture(accuracy: float, flip_rate: float | None) -> tuple[float, float]:
    """Return the share of prompts with a uniform probability, and the mean of the others."""
    if not 0.0 <= accuracy <= 1.0:
        raise PlanError(f"simulated: an accuracy of {accuracy:g} is not between 0 and 1")
    if flip_rate is None:
        return 0.0, accuracy
    share = 3.0 * flip_rate
    if not 0.0 <= share <= 1.0:
        raise PlanError(f"simulated: a flip_rate of {flip_rate:g} is not between 0 and 1/3")
    if not share / 2 <= accuracy <= 1.0 - share / 2:
        raise PlanError(
            f"simulated: with a flip_rate of {flip_rate:g}, {share:g} of the prompts"
            f" are right half of the time, so the accuracy is between {share / 2:g} and"
            f" {1.0 - share / 2:g} and cannot be {accuracy:g}"
        )
    sure = (accuracy - share / 2) / (1.0 - share) if share < 1.0 else 0.5
    return share, min(max(sure, 0.0), 1.0)


def _answers(context: LaunchContext) -> Path:
    return context.log_dir.absolute() / "simulated.answers.jsonl"


def _ready(context: LaunchContext) -> Path:
    return context.log_dir.absolute() / "simulated.url"
