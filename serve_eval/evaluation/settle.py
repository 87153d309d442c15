"""Settle what a plan leaves to its endpoint, such as the token before texts without context.

Before a whole text, and before a choice without context, lm-eval puts the token that begins texts
in the model's tokenizer, or else the token that ends them. A task with the option `prefix` does the
same:

1. `prefix` is given: it is used. An empty text means no token.
2. `prefix` is not given, and a sample of the task needs one. `settle_prefixes` then writes it into
   the plan before anything is prepared, so that samples, fingerprint, reference and saved plan
   have it, and later readers of the run folder need no endpoint. The first that applies:
   a. The run is resumed: it keeps the prefix of its saved plan.
   b. The endpoint is running and puts its own token before each text: `true`, and none is sent.
   c. The folder in the task's option `tokenizer` names the token, or else the endpoint reports it.
      It is sent as text if the endpoint reads it as one token.
   d. The token is unknown: an empty text.
   An endpoint that the run starts is not running yet: its launcher knows the token, or else the
   tokenizer does. If neither does, the plan gets no prefix, and preparation continues as in d.
3. The probe checks what the endpoint really does. A choice with nothing before it is UNSUPPORTED if
   the endpoint puts no token there. `remarks` warns if first tokens are left out or if two tokens
   precede them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.client.connection import connect, hide_in_errors
from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.evaluation.capabilities import PREFIX, first_token, is_one_token, prompt_logprobs
from serve_eval.plan.prepared_task import PreparedTask, find_roots, lacks_context
from serve_eval.plugins import registry
from serve_eval.plugins.values import load_launcher
from serve_eval.protocol import chat_template
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Ability, LaunchContext, Need, Plan, Task
from serve_eval.storage import run_folder
from serve_eval.storage.sessions import SessionRecord


async def settle(
    plan: Plan,
    out_dir: Path,
    environ: Mapping[str, str],
    notify: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Return the plan with the tokens that begin its texts and the lengths of its prompts.

    A resumed run keeps those of its folder. `notify` receives a line before a wait. Raises
    EndpointError if an endpoint that is asked does not answer, and PlanError for a plan that cannot
    be fitted to it.
    """
    plan = await settle_prefixes(plan, out_dir, environ)
    if not (unfitted := _find_unfitted(plan)):
        return plan
    from serve_eval.evaluation.prompt_lengths import fit_lengths  # few tasks need it

    return await fit_lengths(plan, unfitted, out_dir, environ, notify)


def _find_unfitted(plan: Plan) -> dict[str, Task]:
    """Return the tasks to fit. Skips tasks with problems, which `prepare` reports."""
    found = {}
    for spec in plan.tasks:
        try:
            task = build_task(spec)
        except ServeEvalError:
            continue
        if task.fit is not None:
            found[spec.name] = task
    return found


TOKENIZER = "tokenizer"


async def settle_prefixes(plan: Plan, out_dir: Path, environ: Mapping[str, str]) -> Plan:
    """Return the plan with a prefix for each task that needs one and has none.

    Raises EndpointError if an endpoint that is asked does not answer, and PlanError for a tokenizer
    that cannot be read.
    """
    lacking = await asyncio.to_thread(_find_lacking, plan)
    if not lacking:
        return plan
    lacks = {task.name for task in lacking}
    found: dict[str, str | bool] = {}
    if run_folder.is_bound(out_dir):
        known, found = _read_saved(out_dir)
        lacking = [task for task in lacking if task.name not in known]
    if lacking and plan.launcher.name == "external":
        found |= await _ask(plan, lacking, environ)
    else:
        found |= {
            task.name: told
            for task in lacking
            if (told := _before_the_start(plan, task)) is not None
        }
    found = {name: prefix for name, prefix in found.items() if name in lacks}
    return replace(
        plan,
        tasks=tuple(
            replace(spec, options={**spec.options, PREFIX: found[spec.name]})
            if spec.name in found
            else spec
            for spec in plan.tasks
        ),
    )


def _find_lacking(plan: Plan) -> list[Task]:
    """Return the tasks without a prefix that have a sample in need of one.

    Skips tasks that cannot be loaded; `prepare` reports those.
    """
    roots, lacking = find_roots(plan), []
    for spec in plan.tasks:
        try:
            if PREFIX in spec.options or PREFIX not in registry.options_of(
                registry.load("serve_eval.tasks", spec.name)
            ):
                continue
            task = build_task(spec)
            if task.prompt_logprobs and any(
                not sample.choices or lacks_context(sample)
                for sample in task.load(roots, 1).samples
            ):
                lacking.append(task)
        except ServeEvalError:
            continue
    return lacking


def _read_saved(out_dir: Path) -> tuple[set[str], dict[str, str | bool]]:
    """Return the tasks of a resumed run, and the prefixes of those that have one.

    None if it began without prefixes, or if the folder cannot be read, which `open_folder`
    reports.
    """
    try:
        saved = run_folder.read_plan(out_dir).tasks
    except RunFolderError:
        return set(), {}
    return {spec.name for spec in saved}, {
        spec.name: one for spec in saved if isinstance(one := spec.options.get(PREFIX), str | bool)
    }


async def _ask(
    plan: Plan, tasks: Sequence[Task], environ: Mapping[str, str]
) -> dict[str, str | bool]:
    """Return the prefixes at a running endpoint.

    Empty if it has no log-probabilities of prompts, which the probe reports.
    """
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    context, found = LaunchContext(model=plan.model, log_dir=Path()), {}
    told: dict[tuple[Path | None, str], str | bool] = {}
    with hide_in_errors(plan.connection, environ):
        async with (
            launcher.launch(context, **options) as endpoint,
            connect(plan, endpoint, environ) as client,
        ):
            ability, _ = await prompt_logprobs(client)
            if ability.works:
                for task in tasks:
                    asked = _folder(plan, task), repr(task.extra)
                    if asked not in told:
                        told[asked] = await ask_prefix(client, asked[0], task.extra)
                    found[task.name] = told[asked]
    return found


async def ask_prefix(
    client: Client, tokenizer: Path | None, extra: Mapping[str, object]
) -> str | bool:
    """Return the prefix at an endpoint whose form of log-probabilities is known.

    `extra` are the fields that a task adds to each request. Raises EndpointError and PlanError.
    """
    if (await first_token(client, extra)).works:
        return True
    tokens = (
        chat_template.read_special_tokens(tokenizer)
        if tokenizer is not None
        else await client.special_tokens()
    )
    text = chat_template.beginning(tokens)
    return text if text and await is_one_token(client, text, extra) else ""


def _before_the_start(plan: Plan, task: Task) -> str | bool | None:
    """Return the prefix at an endpoint that the run starts, or None if it is unknown.

    The launcher knows it, or else the tokenizer's folder.
    """
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options)
    known = None if launcher.beginning is None else launcher.beginning(**options)
    if known is True or (folder := _folder(plan, task)) is None:
        return known
    return chat_template.beginning(chat_template.read_special_tokens(folder))


def _folder(plan: Plan, task: Task) -> Path | None:
    """Return the tokenizer folder that a task names."""
    named = next(spec.options.get(TOKENIZER) for spec in plan.tasks if spec.name == task.name)
    return Path(named).expanduser() if isinstance(named, str) else None


def list_abilities(sessions: Iterable[SessionRecord]) -> list[Ability]:
    """Return the abilities of the endpoint that all sessions of a run found."""
    return [one for session in sessions for one in session.abilities]


def remarks(prepared: Iterable[PreparedTask], abilities: Iterable[Ability]) -> list[str]:
    """Return warnings about first tokens that are left out or preceded by two tokens."""
    puts = {one.works for one in abilities if one.need == Need.FIRST_TOKEN}
    found = []
    for p in (one for one in prepared if one.task.prompt_logprobs):
        prefix, samples = p.task.protocol.get(PREFIX), p.dataset.samples
        if prefix == "" and False in puts and any(not sample.choices for sample in samples):
            found.append(
                f"{p.task.name}: the first token of each text is left out because nothing precedes"
                " it; lm-eval scores it after the token that begins texts. Name the folder of the"
                f" model's tokenizer (--set {p.task.name}.tokenizer=DIR) or the token"
                f" (--set {p.task.name}.prefix='<s>')"
            )
        elif (
            isinstance(prefix, str)
            and prefix
            and True in puts
            and any(context == prefix for sample in samples for context, _ in sample.continued)
        ):
            found.append(
                f"{p.task.name}: two tokens begin each text: the endpoint's own, then the prefix"
                f" {prefix!r}. Omit the prefix, or declare that the endpoint adds one:"
                f" --set {p.task.name}.prefix=true"
            )
    return found
