"""Where the answers of a run come from: launched or reached as the plan says, watched, and remarked
on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.connection import connect, hide_in_errors
from serve_eval.client.preflight import discover_model, short
from serve_eval.errors import PlanError
from serve_eval.evaluation.endpoint import deployment
from serve_eval.evaluation.endpoint.hang_detector import HangDetector, ProbedServer
from serve_eval.evaluation.endpoint.server_quirks import quirks
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.storage.file_names import LOGS
from serve_eval.evaluation.storage.private_files import private_file
from serve_eval.evaluation.storage.sessions import read_sessions
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import Endpoint, LaunchContext, Plan, Prompt, Sample, Task
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.schema.prompt_hash import prompt_sha256

Launching = Callable[[Plan, Sequence[PreparedTask], Path], AbstractAsyncContextManager[Endpoint]]
"""Gives the endpoint of a plan for the length of a block, with a folder for its logs."""


def address_of(plan: Plan) -> Endpoint:
    """The endpoint as far as the plan alone tells it."""
    base_url = plan.launcher.options.get("base_url")
    return Endpoint(
        base_url=normalise_base_url(str(base_url)) if base_url else "", model=plan.model
    )


def last_endpoint(plan: Plan, folder: Path) -> Endpoint:
    """The endpoint that was asked last, for a run of which nothing is left to ask."""
    sessions = read_sessions(folder)
    return sessions[-1].endpoint if sessions else address_of(plan)


async def with_model(
    plan: Plan, environ: Mapping[str, str], *, notify: Callable[[str], None] = lambda line: None
) -> Plan:
    """The plan with its model: as given, or the only one that a running endpoint lists. Raises
    EndpointError else.

    `notify` gets a line when it is waited for.
    """
    if plan.model is not None:
        return plan
    if plan.launcher.name != "external":
        raise PlanError(f"model: required with the launcher {plan.launcher.name!r}")
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context = LaunchContext(model=None, log_dir=Path())
    async with (
        launcher.launch(context, **options) as endpoint,
        connect(plan, endpoint, environ) as client,
    ):
        client.liveness.notify = notify
        return replace(plan, model=await discover_model(client))


@asynccontextmanager
async def launch(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    folder: Path,
    *,
    notify: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[Endpoint]:
    """The endpoint of the plan's launcher, with the options checked. Raises PlanError and
    LaunchError.
    """
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context = LaunchContext(
        model=plan.model,
        log_dir=(folder / LOGS).absolute(),
        write_answer_file=lambda path, p: _write_answers(path, prepared, p),
        patience_s=plan.limits.sample_timeout_s,
        notify=notify,
    )
    with hide_in_errors(plan.connection, os.environ):
        async with launcher.launch(context, **options) as endpoint:
            yield replace(
                endpoint,
                base_url=normalise_base_url(endpoint.base_url),
                model=endpoint.model or plan.model,
            )


def check_launcher(plan: Plan) -> None:
    """Raises PlanError for options that cannot be launched, before there is a run folder that is
    bound to them.
    """
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context = LaunchContext(
        model=plan.model, log_dir=Path(), patience_s=plan.limits.sample_timeout_s
    )
    launcher.commands(context, **options)


def about_endpoint(
    plan: Plan, endpoint: Endpoint, folder: Path, tasks: Sequence[Task]
) -> list[str]:
    """What a reader of the verdict should know of where the answers came from."""
    warnings = quirks(plan, endpoint, tasks)
    served = endpoint.info.models
    if served and plan.model not in served:
        warnings.append(
            f"the endpoint lists {', '.join(served)} and not {plan.model}, but answered:"
            " trtllm-serve takes any model name, so make sure that this is the model whose"
            " reference is used"
        )
    if plan.launcher.name == "simulated":
        warnings.append("the endpoint was simulated: its verdicts say nothing about any model")
    known, sessions = endpoint.info.deployment, read_sessions(folder)
    warnings += dict.fromkeys(
        line for one in sessions for line in deployment.remarks(one.endpoint.info)
    )
    if (
        known is not None
        and known.disaggregated
        and (line := deployment.first_tokens(tasks)) is not None
    ):
        warnings.append(line)
    noted = [session.endpoint.info.hidden_retries or {} for session in sessions]
    again = {role: sum(one.get(role, 0) for one in noted) for one in noted for role in one}
    if any(again.values()):
        warnings.append(
            "the orchestrator asked its servers again in secret"
            f" ({', '.join(f'{r} {n}' for r, n in again.items())}): so many failures are not among"
            " those that are counted here"
        )
    addresses = {session.endpoint.base_url for session in sessions}
    if plan.launcher.name == "external" and len(addresses) > 1:
        warnings.append(
            f"the answers come from {len(addresses)} addresses: {', '.join(sorted(addresses))}"
        )
    return warnings


def watch_for_hung(
    plan: Plan,
    prepared: PreparedTask,
    endpoint: Endpoint,
    client: Client,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> HangDetector:
    """Finds out which server hangs, of those that the launcher tells of, by short requests such as
    the task sends.
    """
    limit_s = plan.limits.stall_timeout_s
    once = replace(plan.limits, max_attempts=1, rate_limit=None, stream=False)
    once = replace(
        once, connect_timeout_s=limit_s, stall_timeout_s=limit_s, sample_timeout_s=limit_s
    )

    def ask(name: str, opened: Callable[[], Client], tokens: int, log: Path | None) -> ProbedServer:
        sampling = replace(prepared.task.sampling, max_tokens=tokens)
        return ProbedServer(
            name,
            opened,
            short(chat=prepared.chat, sampling=sampling, extra=prepared.task.extra),
            log,
        )

    servers, logs = endpoint.info.servers or {}, endpoint.info.logs or {}
    behind, front, log = [], endpoint.base_url, None
    for name, url in servers.items():
        path = Path(logs[name]) if name in logs else None
        if (address := normalise_base_url(url)) == endpoint.base_url:
            front, log = name, path
        else:
            # A key and a proxy are for the front door.
            opened = partial(Client, replace(endpoint, base_url=address), once)
            behind.append(ask(name, opened, 1, path))
    # One token would be the context server's alone.
    opened = partial(connect, replace(plan, limits=once), endpoint, environ)
    return HangDetector(client, ask(front, opened, 2, log), behind, notify)


def _write_answers(
    path: Path, prepared: Sequence[PreparedTask], probability: Callable[[str, str], float]
) -> None:
    """Writes what a simulated model knows: hash of the prompt, a right and a wrong text,
    probability of being right.
    """
    with private_file(path) as file:
        for p in prepared:
            for sample in p.dataset.samples:
                chance = probability(p.task.name, sample.id)
                for prompt, right, wrong in _list_known(p.task, sample):
                    line = {
                        "sha256": prompt_sha256(prompt),
                        "right": right,
                        "wrong": wrong,
                        "probability": chance,
                    }
                    file.write(msgspec.json.encode(line) + b"\n")


def _list_known(task: Task, sample: Sample) -> Iterator[tuple[Prompt, str, str]]:
    """The prompts of a sample, each with a right and a wrong text. Of choices only the right one
    has two, numbers above and below those of the others, so that the question is right when that
    prompt is.
    """
    right, wrong = task.answers(sample)
    if not sample.choices:
        yield sample.prompt, right, wrong
    start = len(str(sample.prompt))
    for context, choice in sample.continued:
        said = context[start:] + choice
        others = "-2" if said == wrong else "-3"
        yield context + choice, *(("-0.5", "-4") if said == right else (others, others))
