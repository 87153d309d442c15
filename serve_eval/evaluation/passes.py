"""Ask one endpoint the same prompts in several passes, each in a run folder of its own.

The passes share the tasks, the order of the prompts and the endpoint. They differ in what a check
changes from one to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.engine.start_times import Labelled
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import check_launcher, with_model
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.settle import settle
from serve_eval.evidence.engine_counters import Companions
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.schema import Endpoint, Plan, Progress, Report, Spec
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.json_files import differences


async def prepare_passes(
    plan: Plan, out_dir: Path, first: Path, environ: Mapping[str, str], limit: int
) -> tuple[Plan, Sequence[PreparedTask]]:
    """Return the plan that the passes vary, and its tasks.

    `first` is the folder of a pass, with what an earlier session found out. Without a limit of its
    own, the plan gets `limit` prompts for each task,
    unless it names the samples.
    """
    plan = replace(
        plan,
        limit=plan.limit or (None if plan.subset else limit),
        repeats=1,
        repeats_of={},
        no_reference=True,
    )
    plan = replace(plan, verdict=Spec(name="classic"), early_stop=None)
    plan = replace(plan, accept_identical=False)
    extensions.include(plan.include_path)
    plan = await settle(await with_model(plan, environ), first, environ)
    if not out_dir.exists():
        check_launcher(plan)
    return plan, await asyncio.to_thread(prepare, plan)


def check_same_passes(out_dir: Path, saved: Plan | None, plan: Plan, limits: Sequence[str]) -> None:
    """Raise RunFolderError if the folder has answers to another plan than `plan`.

    They would be mixed up with these. `limits` are those that must not change either.
    """
    if saved is None or not run_folder.has_answers_below(out_dir):
        return
    if differing := differences(_extract_binding(saved, limits), _extract_binding(plan, limits)):
        raise RunFolderError(
            f"{out_dir} holds checks of something else:\n"
            + "\n".join(f"  {line}" for line in differing),
            hint="Use another folder with -o.",
        )


def _extract_binding(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a plan that must not change, as plain JSON."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    limits = found.pop("limits")
    for name in run_folder.FREE_FIELDS:
        found.pop(name, None)
    return {**found, "limits": {name: limits[name] for name in names}}


def settle_order(out_dir: Path, plan: Plan, notify: Callable[[str], None]) -> int:
    """Return the seed of the order that the passes share, and note if the plan names another."""
    seed = order_seed.settle_shared(out_dir, plan)
    if (line := order_seed.not_followed(plan, seed)) is not None:
        notify(f"warning: {line}")
    return seed


@freeze
class PassSettings:
    """The settings that all passes of a check share.

    `command` is that of the check. `companions` joins their runs, which share one endpoint.
    """

    command: str
    out_dir: Path
    progress: Progress | None
    environ: Mapping[str, str]
    notify: Callable[[str], None]
    companions: Companions = field(default_factory=Companions)


async def ask_pass(
    name: str,
    plan: Plan,
    prepared: Sequence[PreparedTask] | None,
    endpoint: Endpoint,
    shared: PassSettings,
    seed: int,
) -> Report:
    """Ask what is left of a pass, in the run folder of its name."""
    return await evaluate(
        plan,
        shared.out_dir / name,
        progress=None if shared.progress is None else Labelled(shared.progress, name),
        environ=shared.environ,
        launching=lambda *_: nullcontext(endpoint),
        notify=lambda line: shared.notify(f"{name}: {line}"),
        prepared=prepared,
        seed=seed,
        companions=shared.companions,
        part_of=shared.command,
    )
