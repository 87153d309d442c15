"""Launch or reach the endpoint of a plan, watch it, and report on it.

The behaviour was found with the servers themselves; docs/measured/server-quirks.md has the table.
Behaviour that shows in an answer is probed instead, for any server.
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
from serve_eval.client.questions import LLAMA_CPP_PYTHON
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation import deployment
from serve_eval.evaluation.deployment import check_inherited
from serve_eval.evaluation.hang_detector import HangDetector, ProbedServer
from serve_eval.plan.check import warn_of_meaningless
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import Launcher, load_launcher
from serve_eval.protocol.conversation import list_prompts
from serve_eval.schema import (
    Endpoint,
    JobSize,
    LaunchContext,
    PathClaim,
    Plan,
    Prompt,
    Sample,
    Task,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.schema.media import prompt_sha256, without_answers
from serve_eval.storage.file_names import LOGS
from serve_eval.storage.sessions import SessionRecord
from serve_eval.whole_file import replace_file

Launching = Callable[[Plan, Sequence[PreparedTask], Path], AbstractAsyncContextManager[Endpoint]]
"""Yields the endpoint of a plan for the duration of a block, with a folder for its logs."""


def address_of(plan: Plan) -> Endpoint:
    """Return the endpoint as far as the plan alone determines it."""
    base_url = plan.launcher.options.get("base_url")
    return Endpoint(
        base_url=normalise_base_url(str(base_url)) if base_url else "", model=plan.model
    )


def last_endpoint(plan: Plan, sessions: Sequence[SessionRecord]) -> Endpoint:
    """Return the endpoint that was asked last, for a run with nothing left to ask."""
    return sessions[-1].endpoint if sessions else address_of(plan)


async def with_model(
    plan: Plan, environ: Mapping[str, str], *, notify: Callable[[str], None] = lambda line: None
) -> Plan:
    """Return the plan with its model: the given one, or the only one that a running endpoint lists.

    Of several, it is the one with the name of the reference. The tasks then have the values of the
    preset that the plan names. `notify` receives a line if the
    endpoint must be waited for. Raises PlanError for a launcher without a model, and EndpointError
    if the endpoint lists none, or several without that name.
    """
    if plan.model is not None:
        return plan
    if plan.launcher.name != "external":
        raise PlanError(
            f"model: required with the launcher {plan.launcher.name!r}", hint="Add --model NAME."
        )
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context = LaunchContext(model=None, log_dir=Path())
    async with (
        launcher.launch(context, **options) as endpoint,
        connect(plan, endpoint, environ) as client,
    ):
        client.liveness.notify = notify
        named = replace(plan, model=await discover_model(client, plan.reference_model))
    if named.preset is None:
        return named
    from serve_eval.plan.presets import settle_preset

    return settle_preset(named)


@asynccontextmanager
async def launch(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    folder: Path,
    *,
    notify: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[Endpoint]:
    """Launch the endpoint of the plan, after checking the launcher's options.

    Raises PlanError and LaunchError.
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
    for line in list_disagreements(plan):
        notify(f"warning: {line}")
    with hide_in_errors(plan.connection, os.environ):
        async with launcher.launch(context, **options) as endpoint:
            yield replace(
                endpoint,
                base_url=normalise_base_url(endpoint.base_url),
                model=endpoint.model or plan.model,
            )


def check_launcher(plan: Plan) -> list[list[str]]:
    """Return the launcher's command lines. Raises PlanError for options that cannot be launched.

    This comes before a run folder is created and bound to them. The variables that servers would
    inherit are checked too.
    """
    check_inherited(plan)
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context = LaunchContext(
        model=plan.model, log_dir=Path(), patience_s=plan.limits.sample_timeout_s
    )
    return launcher.commands(context, **options)


def job_size(plan: Plan) -> JobSize:
    """Return the size of a batch job that runs the plan with its servers.

    It is one task on one node without GPUs if the launcher starts no servers of that kind. Raises
    PlanError for options that cannot be launched.
    """
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context = LaunchContext(
        model=plan.model, log_dir=Path(LOGS).absolute(), patience_s=plan.limits.sample_timeout_s
    )
    if launcher.job_size is not None:
        return launcher.job_size(context, **options)
    launcher.commands(context, **options)
    return JobSize()


def count_gpus(plan: Plan) -> int | None:
    """Return the GPUs that the servers of a plan use; None if the launcher does not know."""
    try:
        size = job_size(plan)
    except ServeEvalError:
        return None
    return size.nodes * size.gpus_per_node or None


def about_endpoint(
    plan: Plan, endpoint: Endpoint, sessions: Sequence[SessionRecord], tasks: Sequence[Task]
) -> list[str]:
    """Return what a reader of the verdict should know about the source of the answers."""
    warnings = quirks(plan, endpoint, tasks)
    served = endpoint.info.models
    if served and plan.model not in served:
        warnings.append(
            f"the endpoint lists {', '.join(served)}, not {plan.model}, but answered:"
            " trtllm-serve accepts any model name, so check that the reference is for the model"
            " that it serves"
        )
    if plan.launcher.name == "simulated":
        warnings.append("the endpoint was simulated: its verdicts do not apply to any model")
    warnings += endpoint.info.disagreements or ()
    warnings += warn_of_meaningless(
        plan, [line for one in sessions for line in one.endpoint.info.meaningless or ()]
    )
    known = endpoint.info.deployment
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
            "the orchestrator retried requests to its servers without reporting it"
            f" ({', '.join(f'{r} {n}' for r, n in again.items())}): those failures are not counted"
            " here"
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
    """Return a detector that finds a hung server with short requests like those of the task.

    It checks the servers that the launcher reports.
    """
    limit_s = plan.limits.stall_timeout_s
    once = replace(
        plan.limits, max_attempts=1, rate_limit=None, requests_per_minute=None, stream=False
    )
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
            # The key and the proxy are only for the endpoint itself.
            opened = partial(Client, replace(endpoint, base_url=address), once)
            behind.append(ask(name, opened, 1, path))
    # A single token would come from the context server alone.
    opened = partial(connect, replace(plan, limits=once), endpoint, environ)
    return HangDetector(client, ask(front, opened, 2, log), behind, notify)


def _write_answers(
    path: Path, prepared: Sequence[PreparedTask], probability: Callable[[str, str], float]
) -> None:
    """Write the knowledge of a simulated model.

    Per prompt: its hash, a right and a wrong text, and the probability of answering right.
    """
    with replace_file(path) as file:
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
    """Yield the prompts of a sample, each with a right and a wrong text.

    The right choice's numbers are above and below those of the others, so that a question is
    answered right exactly if its prompt is. The other choices have one number each.
    """
    if sample.conversation is not None and task.answers_by_turn is not None:
        yield from _list_turns(task.answers_by_turn(sample), sample)
        return
    right, wrong = task.answers(sample)
    if not sample.choices:
        yield sample.prompt, right, wrong
    start = len(str(sample.prompt))
    for context, choice in sample.continued:
        said = context[start:] + choice
        others = "-2" if said == wrong else "-3"
        yield context + choice, *(("-0.5", "-4") if said == right else (others, others))


def _list_turns(
    known: Sequence[tuple[str, str]], sample: Sample
) -> Iterator[tuple[Prompt, str, str]]:
    """Yield the prompt of each turn without the answers before it, which the server gives."""
    for prompt, (right, wrong) in zip(list_prompts(sample), known, strict=True):
        yield without_answers(prompt) if not isinstance(prompt, str) else prompt, right, wrong


def describe(plan: Plan, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with what its launcher promises and warns of."""
    told = {"expects": list_promised(plan), "disagreements": list_disagreements(plan)}
    return endpoint.with_info(**{name: found for name, found in told.items() if found})


def list_promised(plan: Plan) -> tuple[str, ...]:
    """Return the names of the claims that the launcher makes. Raise PlanError for unknown ones."""
    launcher = load_launcher(plan.launcher.name)
    if launcher.expects is None:
        return ()
    names = tuple(launcher.expects(_context(plan), **_options(launcher, plan)))
    for name in names:
        if name not in set(PathClaim):
            raise PlanError(
                f"launcher {plan.launcher.name}: expects() returned {name!r}",
                hint=f"Known: {', '.join(PathClaim)}.",
            )
    return names


def list_disagreements(plan: Plan) -> tuple[str, ...]:
    """Return the launcher's warnings about options of servers that work together."""
    launcher = load_launcher(plan.launcher.name)
    if launcher.lint is None:
        return ()
    return tuple(launcher.lint(_context(plan), **_options(launcher, plan)))


def _options(launcher: Launcher, plan: Plan) -> dict[str, object]:
    return launcher.check_options(plan.launcher.options)


def _context(plan: Plan) -> LaunchContext:
    return LaunchContext(model=plan.model, log_dir=Path(), patience_s=plan.limits.sample_timeout_s)


TRANSFORMERS = "transformers_serve"
"""Our launcher for transformers, the only sign of it: the server reports nothing about itself."""


def quirks(plan: Plan, endpoint: Endpoint, tasks: Sequence[Task]) -> list[str]:
    """Return what a reader of the numbers should know about the server, and what to do."""
    asked = [task for task in tasks if not task.prompt_logprobs]
    found = []
    if endpoint.info.server == LLAMA_CPP_PYTHON and (
        plan.limits.stream and plan.limits.concurrency != 1 and plan.launcher.name != "llama_cpp"
    ):
        found.append(
            f"the endpoint is {LLAMA_CPP_PYTHON}, which cuts off streams when a newer request"
            " arrives, unless it runs with --interrupt_requests false. Start it with that"
            " option, or run without --set limits.stream=true or with --concurrency 1"
        )
    sampled = [
        task.name for task in asked if task.sampling.temperature or plan.times(task.name) > 1
    ]
    if plan.launcher.name == TRANSFORMERS and sampled:
        found.append(
            "transformers serve ignores the temperature of a request: unless generation_config.json"
            f" sets do_sample, every answer to a prompt is the same ({', '.join(sampled)})"
        )
    return found
