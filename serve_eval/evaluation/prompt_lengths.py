"""Fit prompts to the tokens of an endpoint, for tasks whose prompts have a given length.

A task with `fit` returns the options with which its prompts have their lengths, given the number of
tokens of any prompt. They go into the plan before anything is prepared, so that samples,
fingerprint, reference and saved plan have them, and later readers of the run folder need no
endpoint. The first that applies:

1. The plan has the options: they stay.
2. The run is resumed: it keeps those of its saved plan.
3. The endpoint is running: it counts, by a route that only tokenizes, else by answers of one token.
4. The run starts the endpoint: its launcher counts, else the tokenizer in the folder of the model.
5. Nothing counts before the start: the task estimates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.client.connection import connect, hide_in_errors
from serve_eval.errors import EndpointError, PlanError, RunFolderError
from serve_eval.evaluation.capabilities.probe_request import ping, read_context, send_probe
from serve_eval.evidence.prompt_audit import PromptReader, reader_of
from serve_eval.evidence.prompt_tokens import TOKENIZER_FILE, open_local
from serve_eval.plan.prepared_task import find_roots
from serve_eval.plugins.values import Launcher, load_launcher
from serve_eval.schema import DataRoots, Failure, LaunchContext, Plan, Prompt, Spec, Task
from serve_eval.schema.task import FITTED, CountTokens
from serve_eval.storage import run_folder

TOO_MANY = 2**40
"""The count of a prompt that the endpoint refuses as longer than its context."""

Fitted = Mapping[str, Mapping[str, object]]
"""The options found for tasks, by the names of the tasks."""


async def fit_lengths(
    plan: Plan,
    unfitted: Mapping[str, Task],
    out_dir: Path,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> Plan:
    """Return the plan with the options that fit the `unfitted` tasks to the endpoint.

    Raises EndpointError if an endpoint that is asked does not answer or counts no tokens, and
    PlanError for a length that no prompt of a task can have.
    """
    found: dict[str, Mapping[str, object]] = {}
    if run_folder.is_bound(out_dir):
        found |= _read_saved(out_dir, unfitted)
    missing = {name: task for name, task in unfitted.items() if name not in found}
    if missing:
        found |= await _fit(plan, missing, environ, notify)
    return replace(plan, tasks=tuple(_with_options(spec, found) for spec in plan.tasks))


def keep_lengths(plan: Plan, other: Plan) -> Plan:
    """Return a plan whose prompts have the lengths of another one's, so that both ask the same."""
    known = {spec.name: _list_fitted(spec) for spec in other.tasks}
    return replace(plan, tasks=tuple(_with_options(spec, known) for spec in plan.tasks))


def _list_fitted(spec: Spec) -> Mapping[str, object]:
    return {name: spec.options[name] for name in FITTED if name in spec.options}


def _with_options(spec: Spec, found: Fitted) -> Spec:
    return replace(spec, options={**found.get(spec.name, {}), **spec.options})


def _read_saved(out_dir: Path, tasks: Mapping[str, Task]) -> dict[str, Mapping[str, object]]:
    """Return the options of a resumed run. An empty mapping: the run began without them."""
    try:
        saved = run_folder.read_plan(out_dir).tasks
    except RunFolderError:
        return {}
    return {spec.name: _list_fitted(spec) for spec in saved if spec.name in tasks}


async def _fit(
    plan: Plan,
    tasks: Mapping[str, Task],
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> dict[str, Mapping[str, object]]:
    launcher, roots = load_launcher(plan.launcher.name), find_roots(plan)
    options = launcher.check_options(plan.launcher.options)
    if plan.launcher.name != "external":
        return await asyncio.to_thread(_fit_before_start, plan, launcher, options, tasks, roots)
    context = LaunchContext(model=plan.model, log_dir=Path())
    with hide_in_errors(plan.connection, environ):
        async with (
            launcher.launch(context, **options) as endpoint,
            connect(plan, endpoint, environ) as client,
        ):
            client.liveness.notify = notify
            notify(f"counting the tokens of the prompts of {', '.join(tasks)} at the endpoint")
            return await fit_to_client(client, tasks, roots)


async def fit_to_client(
    client: Client, tasks: Mapping[str, Task], roots: DataRoots
) -> dict[str, Mapping[str, object]]:
    """Return the options that fit tasks to the endpoint of a client. Raises EndpointError."""
    await _wait_for_answer(client, chat=any(task.chat for task in tasks.values()))
    reader = reader_of(client, timeout_s=client.limits.sample_timeout_s)
    count = _wait_in_thread(_Counter(client, reader).count)
    limit = await client.context_tokens()
    return {
        name: await asyncio.to_thread(task.fit, count, limit, roots)
        for name, task in tasks.items()
        if task.fit is not None
    }


async def _wait_for_answer(client: Client, *, chat: bool) -> None:
    """Wait for a short answer, as a server that starts or restarts gives one later."""
    result = await send_probe(client, ping(chat), max_tokens=1)
    if isinstance(result, Failure):
        raise EndpointError(f"{client.endpoint.base_url} does not answer: {result.message}")


def _wait_in_thread(count: Callable[[Prompt], Awaitable[int]]) -> CountTokens:
    """Return a function for another thread that counts on this event loop."""
    loop = asyncio.get_running_loop()

    async def wait(prompt: Prompt) -> int:
        return await count(prompt)

    return lambda prompt: asyncio.run_coroutine_threadsafe(wait(prompt), loop).result()


@dataclass
class _Counter:
    """Counts the tokens of prompts at an endpoint, by a route if it had one for the first."""

    client: Client
    reader: PromptReader
    by_route: bool = True

    async def count(self, prompt: Prompt) -> int:
        """Return the number of tokens, or TOO_MANY. Raises EndpointError if nothing counts."""
        if self.by_route:
            if (counted := await self.reader.count_by_route(prompt)) is not None:
                return counted
            self.by_route = False
        result = await send_probe(self.client, prompt, max_tokens=1)
        if isinstance(result, Failure):
            if read_context(result.message) is not None:
                return TOO_MANY
            why = result.message
        elif result.usage.prompt_tokens:
            return result.usage.prompt_tokens
        else:
            why = "answers count no prompt tokens"
        raise EndpointError(
            f"{self.client.endpoint.base_url} does not count the tokens of a prompt: {why}",
            hint=f"Give {' and '.join(FITTED)} of the task, such as those in another run's plan.",
        )


def _fit_before_start(
    plan: Plan,
    launcher: Launcher,
    options: Mapping[str, object],
    tasks: Mapping[str, Task],
    roots: DataRoots,
) -> dict[str, Mapping[str, object]]:
    """Return the options for a server that does not run yet, of tasks that can be fitted to it."""
    with ExitStack() as opened:
        if (count := open_counter(plan, launcher, options, opened)) is None:
            return {}
        return {
            name: task.fit(count, None, roots)
            for name, task in tasks.items()
            if task.fit is not None
        }


def open_counter(
    plan: Plan, launcher: Launcher, options: Mapping[str, object], opened: ExitStack
) -> CountTokens | None:
    """Return what counts tokens as the server will: its launcher, or the tokenizer of its model."""
    if (count_tokens := launcher.count_tokens) is not None:

        def count(prompt: Prompt) -> int:
            found = count_tokens(prompt, **options)
            if found is None:
                raise PlanError(f"launcher.{launcher.name}: count_tokens returned None")
            return found

        return count if count_tokens("", **options) is not None else None
    folder = Path(plan.model or "").expanduser()
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    return opened.enter_context(open_local(folder)).count
