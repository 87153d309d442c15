"""Run `serve-eval setup`: write a starter plan, judge a real model, look at the machine.

`setup init` asks an endpoint what it is, `setup demo` needs no GPU and no download, and `setup
schema` prints the JSON Schema of a file.

A recipe is a deployment that others published: `setup init --from` writes a plan for each.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._address import ADDRESS_HELP, SetOptions, address_of
from serve_eval.cli._common_options import PageFaceOptions, ScreenOptions
from serve_eval.cli._options import command
from serve_eval.frozen import freeze
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import Model
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.report.document import Document
    from serve_eval.schema import Plan
    from serve_eval.workflows.init import EndpointFacts
    from serve_eval.workflows.init.recipe import DeploymentRecipe

INIT_EXAMPLES = (
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


@command(examples=INIT_EXAMPLES)
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

        written = write_recipe_plans(
            wanted.recipe, wanted.output, model=wanted.model, force=wanted.force
        )
        print_result(written, faces)
        return
    from serve_eval.plan.resolve import resolve_address
    from serve_eval.workflows import init
    from serve_eval.workflows.init import make_document

    if wanted.output.exists() and not wanted.force:
        raise PlanError(
            f"{wanted.output} already exists",
            hint="Choose another name with -o, or replace it with --force.",
        )
    plan = resolve_address(address_of(url, wanted.model, connection, more), os.environ)
    base_url = str(plan.launcher.options["base_url"])
    facts = _ask(plan, offline=wanted.offline)
    text = init.write_starter_plan(facts, base_url, plan.model, wanted.output)
    init.save_starter_plan(wanted.output, text, force=wanted.force)
    print_result(make_document(facts, base_url, plan.model, wanted.output), faces)


def _ask(plan: Plan, *, offline: bool) -> EndpointFacts:
    """Return what the endpoint tells, or nothing if it is not to be asked."""
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import say
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.init import EndpointFacts, ask_facts

    if offline:
        return EndpointFacts(problem="it was not asked (--offline)")
    say(f"serve-eval setup init: {plan.launcher.options['base_url']}")
    try:
        return run_async(ask_facts(plan))
    except Interrupted:
        say("Interrupted; nothing was written")
        raise typer.Exit(INTERRUPTED) from None


def setup_demo(
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="Folder for the runs (default outputs/<time>_demo)."
        ),
    ] = None,
) -> None:
    """Judge the embedded model, intact and damaged.

    The model passes intact and in 8 bits, and fails in 3 bits. In 4 bits, only a comparison of
    pairs shows the damage.
    """
    from serve_eval.cli._streams import draw, emit
    from serve_eval.cli.run import execute
    from serve_eval.errors import RunFolderError
    from serve_eval.report.summary.headline import print_table_of_runs
    from serve_eval.storage.command_folder import claim_default_folder
    from serve_eval.storage.file_names import PAGE_FILE
    from serve_eval.storage.report_file import read_report
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.demo import acts

    folder = output_dir or claim_default_folder("demo")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(
            f"{folder} exists and is not an empty folder", hint="Choose another with -o."
        )
    as_expected, pages, reports = True, [], {}
    for act in acts():
        emit(f"\n{act.title}\n\n")
        code = execute(act.plan, folder / act.name)
        if code == INTERRUPTED:
            raise typer.Exit(code)
        as_expected = as_expected and code == act.expected
        pages.append(folder / act.name / PAGE_FILE)
        reports[act.name] = read_report(folder / act.name)
    emit("\nThe five runs:\n\n")
    draw(lambda console: print_table_of_runs(reports, console))
    emit("\nThe reports as pages:\n" + "".join(f"  {page}\n" for page in pages))
    emit("Next: serve-eval run --base-url http://HOST:8000 --model NAME --tasks gsm8k\n")
    raise typer.Exit(0 if as_expected else 1)


DOCTOR_EXAMPLES = (
    ("See what works on this machine:", "serve-eval setup doctor"),
    ("List what is absent, with the commands that install it:", "serve-eval setup doctor -v"),
)


@command(examples=DOCTOR_EXAMPLES)
def setup_doctor(faces: PageFaceOptions) -> None:
    """Look at this machine: Python, limits, keys, isolation, GPUs, programs and extras.

    Nothing is sent. Ask an endpoint with serve-eval smoke.

    Exit codes: 0, or 1 if something will stop runs.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.doctor import examine, make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    findings = list(examine(os.environ))
    figures = pretty_json({"schema_version": 1, "findings": findings})
    raise typer.Exit(end(make_document(findings), faces, figures=figures))


KINDS = ("plan", "suite", "report", "journal", "events", "document", "listing")
SCHEMA_EXAMPLES = (
    ("Let an editor check plans:", "serve-eval setup schema plan > plan.schema.json"),
    ("See what a program finds in report.json:", "serve-eval setup schema report"),
)


@command(examples=SCHEMA_EXAMPLES)
def setup_schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
) -> None:
    """Print the JSON Schema of plans, suites, report.json, journals, events or --json.

    docs/extending.md says what is stable, and what an editor needs.
    """
    from serve_eval.cli._streams import emit

    emit(format_schema(kind))


def format_schema(kind: str) -> str:
    """Return the text of a schema, as the files of docs/schemas hold it.

    Raises PlanError for an unknown kind.
    """
    import json

    from serve_eval.errors import PlanError
    from serve_eval.plan.plan_file import describe_plan
    from serve_eval.plugins.registry import nearest
    from serve_eval.report.document import describe_document_form
    from serve_eval.report.document.listing import describe_listing_form
    from serve_eval.storage.report_file import describe_journal, describe_report_file
    from serve_eval.workflows.events import describe_events
    from serve_eval.workflows.suite.suite_form import describe_suite

    functions = (
        describe_plan,
        describe_suite,
        describe_report_file,
        describe_journal,
        describe_events,
        describe_document_form,
        describe_listing_form,
    )
    known = dict(zip(KINDS, functions, strict=True))
    if kind not in known:
        raise PlanError(f"no schema of {kind!r}.{nearest(kind, KINDS)}")
    return f"{json.dumps(known[kind](), indent=1, ensure_ascii=False)}\n"


def write_recipe_plans(given: str, output: Path, *, model: str | None, force: bool) -> Document:
    """Write the plan of each recipe that FILE or FILE:VARIANT names, and return the document.

    `output` is the file of a single one; several have the names of their variants in theirs. Raises
    PlanError for a recipe that cannot be converted, and for files that exist, before any is
    written.
    """
    from serve_eval.errors import PlanError
    from serve_eval.workflows.init import RecipePlan, make_recipe_document, save_starter_plan
    from serve_eval.workflows.init.recipe_plans import read_recipes, split_selector, write_plan

    source, variant = split_selector(given)
    recipes = read_recipes(source, variant)
    if model is not None:
        recipes = [one.with_model(model) for one in recipes]
    files = _name_files(output, recipes)
    if not force and (taken := [str(file) for file in files if file.exists()]):
        raise PlanError(
            f"{', '.join(taken)} already exists",
            hint="Choose another name with -o, or replace it with --force.",
        )
    written = []
    for recipe, file in zip(recipes, files, strict=True):
        text = write_plan(recipe, str(source), file)
        save_starter_plan(file, text, force=force)
        needs, refused = _check(text, file, recipe.nodes)
        written.append(
            RecipePlan(file=file, comments=_list_comments(text), needs=needs, refused=refused)
        )
    return make_recipe_document(source, written)


def _name_files(output: Path, recipes: list[DeploymentRecipe]) -> list[Path]:
    if len(recipes) == 1:
        return [output]
    names = [re.sub(r"[^\w.-]+", "-", one.variant) or str(i) for i, one in enumerate(recipes)]
    return [output.with_stem(f"{output.stem}-{name}") for name in names]


def _list_comments(text: str) -> list[str]:
    """Return the comments at the top of a plan, without the command that shows it."""
    head = text.partition("\n\n")[0].splitlines()
    lines = (line.removeprefix("#").strip() for line in head)
    return [line for line in lines if line and "--dry-run" not in line]


def _check(text: str, file: Path, nodes: int | None) -> tuple[str, str]:
    """Return the nodes that a plan needs, and why the launcher would refuse it."""
    from serve_eval.cli._dry_run import describe_size
    from serve_eval.errors import PlanError, ServeEvalError
    from serve_eval.evaluation.launch import check_launcher
    from serve_eval.plan.resolve import resolve
    from serve_eval.yaml_source import parse

    try:
        plan = resolve(parse(text, str(file), PlanError).value, {}, os.environ).plan
        check_launcher(plan)
        return describe_size(plan, nodes) or "", ""
    except ServeEvalError as error:
        return "", str(error)
