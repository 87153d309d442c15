"""Run `serve-eval references take`: ask an endpoint several times, and register the runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command, list_given_flags, settings_of
from serve_eval.cli._sides import SendingOptions, find_endpoint_plan, is_endpoint, with_plan
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plan.command_line import TRUSTED, write_run_command
from serve_eval.plan.launcher import NO_ADDRESS
from serve_eval.plan.options import ProtocolOptions, ReferenceKeyOptions
from serve_eval.plugins.setting import Setting
from serve_eval.shell_words import join_words

if TYPE_CHECKING:
    from serve_eval.schema import Plan

OWN = "my-references"
"""Default folder of the user's own references."""
_REFUSED_SUBSET = (
    "a reference asks all samples of its tasks, so that every run can be compared with it",
    "Leave out limit, samples and shard.",
)
_NO_SUBSET = Setting("", variable="never", refused=_REFUSED_SUBSET)


@freeze
class TakenPromptOptions:
    """Choose the endpoint, the model and the tasks. A reference asks all samples."""

    title: ClassVar[str] = "Tasks and samples"
    plan_only: ClassVar[tuple[str, ...]] = (*("allow_hub", "allow_code_execution", "include_path"),)
    tasks: shared_options.Tasks = None
    cases: shared_options.Cases = None
    dataset_root: shared_options.DatasetRoot = None
    allow_hub: shared_options.AllowHub = None
    model: shared_options.Model = None
    base_url: Annotated[
        str | None,
        Setting(
            "host:port, .../v1 or a full URL of the endpoint of a plan.",
            metavar="URL",
            variable="always",
        ),
    ] = None
    launcher: Annotated[
        str | None,
        Setting(
            "Start the endpoint with this launcher; see serve-eval data list launchers.",
            metavar="NAME",
        ),
    ] = None
    server_defaults: shared_options.ServerDefaultsOption = None
    settings: shared_options.Set = None
    allow_code_execution: shared_options.AllowCodeExecution = None
    allow_meaningless: shared_options.AllowMeaningless = None
    include_path: shared_options.IncludePath = None
    limit: Annotated[int | None, _NO_SUBSET] = None
    samples: Annotated[str | None, _NO_SUBSET] = None
    shard: Annotated[str | None, _NO_SUBSET] = None


@freeze
class TakenProtocolOptions(ProtocolOptions):
    """Choose the protocol of all tasks."""

    plan_only: ClassVar[tuple[str, ...]] = ("num_fewshot", "max_tokens", "temperature")


@freeze
class TakenKeyOptions(ReferenceKeyOptions):
    """Choose the entry that the runs are registered as."""

    plan_only: ClassVar[tuple[str, ...]] = ("quant_algo", "kv_cache_quant_algo")


@freeze
class TakenConnectionOptions(SendingOptions):
    """Choose how requests are sent."""

    proxy: shared_options.Proxy = None
    ca_bundle: shared_options.CaBundle = None
    client_cert: shared_options.ClientCert = None
    client_key: shared_options.ClientKey = None
    client_key_password_env: shared_options.ClientKeyPasswordEnv = None
    max_tokens_field: shared_options.MaxTokensField = None


@freeze
class TakenOptions:
    """Choose the number of runs, and what is kept of them."""

    title: ClassVar[str] = "Runs and output"
    command: ClassVar[str] = "take"
    runs: Annotated[int, Setting("Runs to ask and to register.", metavar="N")] = 3
    hardware: Annotated[
        str | None,
        Setting(
            'Hardware of the endpoint, such as "8x H200".',
            metavar="TEXT",
            flag=False,
        ),
    ] = None
    probes: Annotated[
        int,
        Setting(
            "Requests of each task to probe, so that run --accept-identical recognizes the"
            " deployment (60 show a fault of 4.9 % of the requests).",
            metavar="N",
        ),
    ] = 0
    reason: Annotated[
        str | None,
        Setting("Reason for replacing an entry; stored with the old one.", metavar="TEXT"),
    ] = None
    new: Annotated[
        bool, Setting("Begin new runs, even if some of the same plan are unfinished.")
    ] = False
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder of the runs (default outputs/<time>_references). An existing one is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None


USUAL = (
    "runs",
    "tasks",
    "cases",
    "dataset_root",
    "model",
    "launcher",
    "settings",
    "references_dir",
    "reason",
    "concurrency",
    "output_dir",
    "as_json",
)


@command(usual=USUAL)
def take(
    prompts: TakenPromptOptions,
    protocol: TakenProtocolOptions,
    keys: TakenKeyOptions,
    sending: TakenConnectionOptions,
    taken: TakenOptions,
    faces: FaceOptions,
    ctx: typer.Context,
    endpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="ENDPOINT",
            help="A running endpoint (host:port or URL), or a plan file; without one, --launcher.",
        ),
    ] = None,
) -> None:
    """Ask an endpoint that you trust several times, and register the mean as its reference.

    Every run asks all samples of a task; --set TASK.num_samples=N makes a reference of fewer. The
    entry goes into --references-dir (default my-references), with the score of every sample. The
    same command continues unfinished runs.

    Exit codes: 0 registered, 2 usage, 4 endpoint or infrastructure, 130 interrupted.
    """
    from serve_eval.storage.command_folder import claim_default_folder

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    settings = settings_of(prompts, keys, sending)
    if choices := settings_of(protocol):
        settings["choices"] = {**settings.get("choices", {}), **choices}
    plan = _find_plan(endpoint, settings, list_given_flags(ctx), prompts.settings or ())
    out_dir = taken.output_dir or _continue(plan, taken) or claim_default_folder("references")
    own = bool(settings.keys() - {"references_dir"})  # A command for the plan alone lacks these.
    file = None if own or endpoint is None or is_endpoint(endpoint) else endpoint
    to = Path(plan.references_dir or OWN)
    raise typer.Exit(_execute(plan, out_dir, to, taken, file, faces))


def _find_plan(
    endpoint: str | None, settings: dict[str, Any], flags: set[str], texts: Sequence[str]
) -> Plan:
    """Return the plan of an endpoint or a plan file, or of a launcher.

    Flags and the `texts` of --set take precedence over variables.
    OPENAI_BASE_URL stands for an address that nothing else gives.
    """
    from serve_eval.errors import PlanError
    from serve_eval.plan.settings import list_keys

    keys = list_keys(texts)
    if keys & {"limit", "samples", "shard"}:
        message, hint = _REFUSED_SUBSET
        raise PlanError(message, hint=hint)
    if endpoint == TRUSTED:
        raise PlanError(
            f"{TRUSTED} stands for the address of a deployment that you know to be sound",
            hint="Put its address there. The deployment under test would pass against itself.",
        )
    named = endpoint is not None and is_endpoint(endpoint)
    if named and "base_url" in flags | keys:
        other = "--set base_url=" if "base_url" in keys else "--base-url "
        raise PlanError(
            f"the endpoint is named twice: {endpoint} and {other}{settings['base_url']}"
        )
    if named or ("launcher" in flags and "base_url" not in flags | keys):
        settings.pop("base_url", None)
    address = os.environ.get("OPENAI_BASE_URL")
    if endpoint is not None:
        try:
            return find_endpoint_plan(endpoint, settings, makes_references=True, address=address)
        except PlanError as error:
            lacks = any(one.endswith(NO_ADDRESS) for one in error.problems)
            hint = "Or give --base-url, or set SERVE_EVAL_BASE_URL." if lacks else error.hint
            raise PlanError(error.problems, hint=hint) from error
    if not ("launcher" in settings or "base_url" in settings or address):
        raise PlanError(
            "name the endpoint that answers",
            hint="Such as serve-eval references take host:8000 -t gsm8k, or a --launcher.",
        )
    return with_plan({}, settings, makes_references=True, address=address).plan


def _continue(plan: Plan, taken: TakenOptions) -> Path | None:
    """Return the folder of an unfinished command of the same plan, and say so."""
    from serve_eval.cli._async import find_continued
    from serve_eval.workflows.references.take import find_unfinished_take

    return None if taken.new else find_continued(find_unfinished_take(plan, taken.runs))


def _execute(
    plan: Plan,
    out_dir: Path,
    references_dir: Path,
    taken: TakenOptions,
    file: str | None,
    faces: FaceOptions,
) -> int:
    """Take the reference, with progress on stderr and what was registered on stdout."""
    from serve_eval.cli._ending import ask_in_folder, end
    from serve_eval.cli._progress import show_progress
    from serve_eval.cli._streams import say
    from serve_eval.storage.story_files import TAKE
    from serve_eval.workflows.references.document import make_document, write_figures
    from serve_eval.workflows.references.take import take_reference

    base_url = plan.launcher.options.get("base_url")
    where = f"endpoint {base_url}" if base_url else f"launcher {plan.launcher.name}"
    runs = f"{taken.runs} run{'s' * (taken.runs != 1)}"
    say(f"serve-eval references take: {where}, {runs}, folder {out_dir}")
    story = take_reference(
        plan,
        out_dir,
        references_dir,
        runs=taken.runs,
        hardware=taken.hardware,
        reason=taken.reason,
        probes=taken.probes,
        progress=show_progress(),
        notify=say,
    )
    found = ask_in_folder(story, out_dir, TAKE.plan)
    document = make_document(
        found.registered,
        references_dir,
        command=f"serve-eval references take: {where}",
        use=_write_use(found.plan, references_dir, file),
        endpoint=str(base_url or ""),
        folder=out_dir,
    )
    figures = write_figures({"registered": found.registered})
    return end(document, faces, folder=out_dir, figures=figures)


def _write_use(plan: Plan, references_dir: Path, file: str | None) -> str:
    """Return the command that judges by the references, with the plan `file` if it was given."""

    if file is None:
        return write_run_command(plan, str(references_dir))
    return join_words(["serve-eval", "run", file, "--references-dir", str(references_dir)])
