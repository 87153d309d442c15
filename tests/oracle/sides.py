"""Run tasks of lm-eval with lm-eval's client, with ours in lm-eval, and with our engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from serve_eval.schema import Limits, Plan, Spec
from tests.oracle.setting import Setting, cached_in, options, quiet

LONGEST = 1_000_000
"""Context length in tokens that lm-eval assumes, so that nothing is cut."""
IN_FLIGHT = 8
AT_ONCE = 24
"""Number of tasks in one of our runs."""


def theirs(setting: Setting, names: Sequence[str], *, our_client: bool) -> dict[str, Any]:
    """Return lm-eval's results by task.

    Each task has its own call, which sets its seeds.
    """
    with quiet(), cached_in(setting.folder / ("client" if our_client else "theirs")):
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=str(setting.folder / "own/lm_eval"))
        return {
            name: _one_of_theirs(setting, name, manager, our_client=our_client) for name in names
        }


def _one_of_theirs(setting: Setting, name: str, manager: Any, *, our_client: bool) -> Any:
    """Return lm-eval's results of a task, or the error that it raised."""
    import lm_eval
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(manager.task_index[name].yaml_path, resolve_func=True)
    kwargs = {**(config.get("dataset_kwargs") or {}), "data_files": dict(setting.files[name])}
    try:
        return lm_eval.simple_evaluate(
            **(_our_client(setting, name) if our_client else _own_client(setting, name)),
            tasks=[
                {**config, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": kwargs}
            ],
            num_fewshot=setting.shots[name],
            task_manager=manager,
            bootstrap_iters=0,
        )
    except Exception as error:  # raised by any task's code
        return error


def _our_client(setting: Setting, name: str) -> dict[str, Any]:
    from serve_eval.lm_eval_model import ServeEvalLM

    return {"model": ServeEvalLM(base_url=setting.url(name), model="oracle", concurrency=IN_FLIGHT)}


def _own_client(setting: Setting, name: str) -> dict[str, Any]:
    told = {
        "base_url": f"{setting.url(name)}/completions",
        "model": "oracle",
        "tokenizer": str(setting.folder / "tokenizer"),
        "tokenizer_backend": "huggingface",
        "num_concurrent": IN_FLIGHT,
        "max_length": LONGEST,
    }
    return {"model": "local-completions", "model_args": told}


def ours(setting: Setting, names: Sequence[str]) -> dict[str, Any]:
    """Return our reports by task, or the error of a task that cannot run.

    Tasks of one server share a run, as they would for a user, and the process in which their
    answers are scored. A run that fails is halved until the task is found.
    """
    found: dict[str, Any] = {}
    for url in setting.urls.values():
        mine = [name for name in names if setting.url(name) == url]
        for chunk in (mine[i : i + AT_ONCE] for i in range(0, len(mine), AT_ONCE)):
            found |= _run(setting, chunk, url)
    return found


def _run(setting: Setting, names: Sequence[str], url: str) -> dict[str, Any]:
    from serve_eval.evaluation.evaluate import evaluate

    specs = tuple(
        Spec(name=f"lm_eval:{name}", options=options(setting.files[name], setting.shots[name]))
        for name in names
    )
    plan = Plan(
        model="oracle",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=specs,
        include_path=(str(setting.folder / "own"),),
        no_reference=True,
        limits=Limits(concurrency=IN_FLIGHT),
    )
    out = setting.folder / "runs" / f"{names[0]}-{len(names)}"
    try:
        with quiet(), cached_in(setting.folder / "ours"):
            report = asyncio.run(evaluate(plan, out, environ={}))
        return dict(zip(names, report.tasks, strict=True))
    except Exception as error:  # raised by any task's code
        if len(names) == 1:
            return {names[0]: error}
        middle = len(names) // 2
        return _run(setting, names[:middle], url) | _run(setting, names[middle:], url)
