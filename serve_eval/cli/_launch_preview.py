"""Show the files and commands of a plan's launcher, ready to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.evaluation.endpoint.launch import job_size
from serve_eval.evaluation.endpoint.meaningless_settings import check_inherited
from serve_eval.plan.plan_file import to_file
from serve_eval.plugins.values import load_launcher
from serve_eval.report.summary.figures import count
from serve_eval.schema import LaunchContext, Plan
from serve_eval.shell_words import join_words, quote_path

PER_NODE = "gpus_per_node"
MOST_ON_A_MACHINE = 8
"""GPUs of the machines that people have, with few exceptions."""


def preview(plan: Plan, log_dir: Path) -> tuple[list[list[str]], dict[str, str]]:
    """Return the launcher's command lines, and the text of its files by path.

    Raises PlanError for invalid launcher options.
    """
    check_inherited(plan)
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options, "launcher")
    context = LaunchContext(
        model=plan.model,
        log_dir=log_dir,
        patience_s=plan.limits.sample_timeout_s,
        plan_file=msgspec.to_builtins(to_file(plan)),
    )
    files = {} if launcher.files is None else launcher.files(context, **options)
    return launcher.commands(context, **options), {str(path): text for path, text in files.items()}


def describe_size(plan: Plan, planned_nodes: int | None = None) -> str:
    """Return the nodes or GPUs that the servers need; "" if a machine with 8 GPUs is enough.

    `planned_nodes` are those that a recipe has for them. Raises PlanError for options that cannot
    be launched.
    """
    if plan.launcher.name == "slurm":
        return _describe_nodes(plan, planned_nodes)
    size = job_size(plan)
    if size.gpus_per_node <= MOST_ON_A_MACHINE:
        return ""
    return (
        f"the servers need {size.gpus_per_node} GPUs of one machine: the launcher slurm places"
        " servers and their ranks on several nodes"
    )


def _describe_nodes(plan: Plan, planned_nodes: int | None) -> str:
    launcher, told = plan.launcher, ""
    if launcher.options.get(PER_NODE) is None:  # The cluster is not asked.
        options = {**launcher.options, PER_NODE: MOST_ON_A_MACHINE}
        plan = replace(plan, launcher=replace(launcher, options=options))
        told = f" (of another number: launcher.{PER_NODE})"
    size = job_size(plan)
    other = planned_nodes not in (None, size.nodes)
    told += f"; the recipe has {planned_nodes}" if other else ""
    each = " each" if size.nodes > 1 else ""
    nodes = count(size.nodes, "node")
    need = f"the servers need {nodes} with {count(size.gpus_per_node, 'GPU')}{each}{told}"
    return need if size.nodes > 1 or other else ""


def lines(commands: Sequence[Sequence[str]], files: Mapping[str, str]) -> list[str]:
    """Return files and commands as text.

    Files are here-documents. Several commands run in the background, so that they run together.
    """
    found = []
    if files:
        found += [
            "files:",
            f"mkdir -p {join_words(sorted({str(Path(path).parent) for path in files}))}",
        ]
    for path, text in files.items():
        found += [f"cat > {quote_path(path)} <<'END'", text.rstrip("\n"), "END"]
    if commands:
        together = " &" if len(commands) > 1 else ""
        found += ["commands:", *(f"  {join_words(command)}{together}" for command in commands)]
    return found
