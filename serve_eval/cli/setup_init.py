"""Run `serve-eval setup init`: ask an endpoint what it is, and write a starter plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._address import ADDRESS_HELP, SetOptions, address_of
from serve_eval.cli._common_options import ScreenOptions
from serve_eval.cli._options import command
from serve_eval.frozen import freeze
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import Model
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.schema import Plan
    from serve_eval.workflows.init.starter_plan import EndpointFacts

EXAMPLES = (
    ("Ask an endpoint, and write plan.yaml:", "serve-eval setup init host:8000"),
    (
        "Write a plan from a recipe of srt-slurm, TensorRT-LLM or Dynamo:",
        "serve-eval setup init --from recipe.yaml",
    ),
    (
        "Write a plan to fill in, without an endpoint:",
        "serve-eval setup init --offline -o plan.yaml",
    ),
)


@freeze
class StarterPlanOptions:
    """Choose the model and the file."""

    title: ClassVar[str] = "Plan"
    model: Model = None
    output: Annotated[
        Path,
        Setting("File to write.", flags=("--output", "-o"), metavar="FILE", variable="never"),
    ] = Path("plan.yaml")
    force: Annotated[bool, Setting("Replace the file if it exists.", variable="never")] = False
    offline: Annotated[bool, Setting("Send nothing.", variable="never")] = False
    recipe: Annotated[
        str | None,
        Setting(
            "Write the plan of a recipe: of srt-slurm or InferenceX, a disaggregated configuration"
            " or SLURM benchmark of TensorRT-LLM, a deployment of Dynamo. Of a file with several"
            " variants, one plan each, or that of VARIANT.",
            flags=("--from",),
            metavar="FILE[:VARIANT]",
            variable="never",
        ),
    ] = None


@freeze
class StarterConnectionOptions(ConnectionOptions):
    """Choose how requests reach the endpoint."""

    plan_only: ClassVar[tuple[str, ...]] = ("api_key_env", "header")


@command(examples=EXAMPLES)
def setup_init(
    wanted: StarterPlanOptions,
    connection: StarterConnectionOptions,
    more: SetOptions,
    faces: ScreenOptions,
    url: Annotated[str | None, typer.Argument(metavar="URL", help=ADDRESS_HELP)] = None,
) -> None:
    """Ask an endpoint what it is, or read a recipe, and write a starter plan with comments.

    A few short requests find the model, the server, the context length and the kinds of requests
    that work. Without an endpoint that answers, the plan is one to fill in.

    Exit codes: 0 written, 2 usage, 130 interrupted.
    """
    from serve_eval.cli._ending import print_result
    from serve_eval.errors import PlanError

    if wanted.recipe is not None:
        if url is not None:
            raise PlanError("--from reads a recipe and asks no endpoint: leave the address out")
        from serve_eval.cli._recipe_plans import write_recipe_plans

        written = write_recipe_plans(
            wanted.recipe, wanted.output, model=wanted.model, force=wanted.force
        )
        print_result(written, faces)
        return
    from serve_eval.plan.resolve import resolve_address
    from serve_eval.workflows.init import starter_plan
    from serve_eval.workflows.init.starter_plan import make_document

    if wanted.output.exists() and not wanted.force:
        raise PlanError(
            f"{wanted.output} already exists",
            hint="Choose another name with -o, or replace it with --force.",
        )
    plan = resolve_address(address_of(url, wanted.model, connection, more), os.environ)
    base_url = str(plan.launcher.options["base_url"])
    facts = _ask(plan, offline=wanted.offline)
    text = starter_plan.write_starter_plan(facts, base_url, plan.model, wanted.output)
    starter_plan.save_starter_plan(wanted.output, text, force=wanted.force)
    print_result(make_document(facts, base_url, plan.model, wanted.output), faces)


def _ask(plan: Plan, *, offline: bool) -> EndpointFacts:
    """Return what the endpoint tells, or nothing if it is not to be asked."""
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import say
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.init.starter_plan import EndpointFacts, ask_facts

    if offline:
        return EndpointFacts(problem="it was not asked (--offline)")
    say(f"serve-eval setup init: {plan.launcher.options['base_url']}")
    try:
        return run_async(ask_facts(plan))
    except Interrupted:
        say("Interrupted; nothing was written")
        raise typer.Exit(INTERRUPTED) from None
