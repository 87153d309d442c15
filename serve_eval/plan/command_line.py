"""Write the commands that ask what a plan asks, with the permissions that they need."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plugins.registry import name_folders
from serve_eval.schema import (
    CERTAIN,
    TOKENS,
    AccuracySpec,
    Connection,
    Limits,
    Plan,
    Spec,
    is_mutable,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.schema.task import SIZES
from serve_eval.shell_words import join_words, quote_path

_OTHER = Spec(name="external")
RUNS = 3
"""The runs of a reference. One run is as noisy as the run that is compared with it."""
TRUSTED = "TRUSTED_HOST:8000"
"""Stands in commands for the address of a deployment that the user trusts."""
HOW_TO_TAKE = (
    "To take a reference, put the address of a deployment that you know to be sound in place of"
    f" {TRUSTED}, never that of the one under test, which would pass against itself"
)


def write_take_command(
    plan: Plan, tasks: Collection[str], *, runs: int = RUNS, reason: str | None = None
) -> str:
    """Return the command that takes a reference for these tasks of a plan at a trusted endpoint.

    It names neither the endpoint of the plan, which is under test and would pass against itself,
    nor the way to reach it, with its keys, but for the route, which is part of the protocol. It has
    no sampling seed, with which all runs would be one draw. If the plan names none of the tasks, it
    is that for all. An entry that is there is replaced only with a `reason`.
    """
    named = tuple(spec for spec in plan.tasks if spec.name in tasks) or plan.tasks
    drawn = tuple(map(_without_seed, named))
    reached = Connection(route=plan.connection.route)
    bare = replace(plan, tasks=drawn, launcher=_OTHER, connection=reached)
    words = ["serve-eval", "references", "take", TRUSTED, "--runs", str(runs)]
    words += _flags(bare, without=_SET_IN_TAKE)
    own = () if plan.references_dir is None else ("--references-dir", plan.references_dir)
    why = () if reason is None else ("--reason", reason)
    return join_words([*words, *own, *why])


def _without_seed(task: Spec) -> Spec:
    """Return a task without its sampling seed."""
    return replace(task, options={k: v for k, v in task.options.items() if k != "seed"})


def write_run_command(plan: Plan, references_dir: str) -> str:
    """Return the command that judges the tasks of a plan by the references in a folder."""
    words = ["serve-eval", "run"]
    if (url := plan.launcher.options.get("base_url")) is not None:
        words += ["--base-url", _shorten(str(url))]
    return join_words([*words, *_flags(plan), "--references-dir", references_dir])


def write_serve_command(plan: Plan) -> str:
    """Return the command that starts the servers of a plan and keeps them up."""
    words = ["serve-eval", "serve", plan.launcher.name]
    if plan.model not in (None, plan.launcher.name):
        words += ["--model", plan.model]
    words += [word for folder in plan.include_path for word in ("--include-path", folder)]
    return join_words([*words, *_list_options(replace(plan, tasks=())), "--detach"])


def _shorten(url: str) -> str:
    """Return the shortest form of a base URL that is read as the same."""
    short = url.removeprefix("http://").removesuffix("/v1")
    try:
        return short if normalise_base_url(short) == url else url
    except PlanError:
        return url


_ALLOWED = ("allow_hub", "allow_code_execution")
_SET_IN_TAKE = (*_ALLOWED, "include_path", "quant_algo", "kv_cache_quant_algo")
"""Options for which `references take` has no flag."""


def _flags(plan: Plan, without: Collection[str] = ()) -> Iterator[str]:
    """Yield the options of a plan: what is asked of which model, and how it is reached.

    Those in `without` are set by --set.
    """
    own_model = plan.model in (None, plan.launcher.name)
    named = {
        "launcher": None if plan.launcher.name == "external" else plan.launcher.name,
        "model": None if own_model else plan.model,
    }
    for name, value in named.items():
        yield from () if value is None else (_flag(name), value)
    yield from ("-t", ",".join(task.name for task in plan.tasks))
    files = dict.fromkeys(path for task in plan.tasks for path in _list_case_files(task))
    repeated: dict[str, Iterable[str]] = {
        "cases": files,
        "dataset_root": plan.dataset_roots[:1],
        "include_path": plan.include_path,
    }
    for name, values in repeated.items():
        for value in values:
            by_set = ("--set", f"{name}={_write_value(value)}")
            yield from by_set if name in without else (_flag(name), value)
    for one in _ALLOWED:
        if getattr(plan, one):
            yield from ("--set", f"{one}=true") if one in without else (_flag(one),)
    if plan.reference_model is not None:
        yield from ("--set", f"reference_model={_write_value(plan.reference_model)}")
    if plan.allow_meaningless:
        yield from ("--set", "allow_meaningless=true")
    yield from _list_changed("accuracy_spec", plan.accuracy_spec, AccuracySpec(), without)
    yield from _list_options(plan)
    if plan.server_defaults != "neutral":
        yield from ("--set", f"server_defaults={plan.server_defaults}")
    yield from _list_changed("connection", plan.connection, Connection())
    if plan.limits.concurrency not in (Limits().concurrency, "auto"):
        yield from ("--concurrency", str(plan.limits.concurrency))


def _list_options(plan: Plan) -> Iterator[str]:
    """Yield the options of the tasks and of the launcher that no other flag holds."""
    for spec, name in (*((task, task.name) for task in plan.tasks), (plan.launcher, "launcher")):
        for option, value in spec.options.items():
            if option in ("base_url", SIZES):  # Each endpoint counts its own sizes.
                continue
            if (option, is_mutable(spec.name)) != ("path", True):
                yield from ("--set", f"{name}.{option}={_write_value(value)}")


def _list_case_files(task: Spec) -> list[str]:
    given: Any = task.options.get("path", ()) if is_mutable(task.name) else ()
    return [given] if isinstance(given, str) else list(given)


_FLAGS = frozenset(("api_key_env", "quant_algo", "kv_cache_quant_algo"))
"""The fields of sections that have a flag; --set takes the others."""


def _list_changed(
    section: str, given: object, usual: object, without: Collection[str] = ()
) -> Iterator[str]:
    """Yield words for each field of a section that has another value than usual."""
    for field in fields(given):  # type: ignore[arg-type]
        value = getattr(given, field.name)
        if field.name == "headers":
            for name, text in value.items():
                yield from ("--header", f"{name}: {text}")
        elif value is not None and value != getattr(usual, field.name):
            if field.name in _FLAGS and field.name not in without:
                yield from (_flag(field.name), str(value))
            else:
                yield from ("--set", f"{section}.{field.name}={_write_value(value)}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _write_value(value: object) -> str:
    """Return a value as YAML on one line, which JSON is; a plain word needs no quotes."""
    if isinstance(value, str) and _is_plain(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_plain(text: str) -> bool:
    """Return True if YAML reads a text without quotes as itself."""
    import yaml

    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return False


def permissions(plans: Sequence[Plan]) -> str:
    """Return the flags that must be given again to resume or to judge saved plans."""
    runs = any(plan.allow_code_execution for plan in plans)
    folders = name_folders(path for plan in plans for path in plan.include_path)
    return f"{' --allow-code-execution' if runs else ''}{folders}"


def write_resume_command(folder: Path, plan: Plan) -> str:
    """Return the command that resumes the run of a plan in a folder."""
    return f"serve-eval run --resume {quote_path(folder)}{permissions([plan])}"


def write_larger(limit: str, amount: int | None = None) -> str:
    """Return the option that lets a run go on beyond a limit that ended it."""
    if limit == CERTAIN:
        return "--no-end-when-certain"
    if limit == TOKENS:
        return f"--max-tokens-total {amount or 'N'}"
    return f"--set limits.{limit}={amount or 'SECONDS'}"
