"""Resolve the sides of a comparison to plans.

A side is a running endpoint, a plan file or a run folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._options import settings_of
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.plan.resolve import Resolved
    from serve_eval.schema import Plan


EndpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENDPOINT", help="A running endpoint (host:port or URL), or a plan file."
    ),
]


@freeze
class SidePromptOptions:
    """Choose the prompts."""

    title: ClassVar[str] = "Tasks and samples"
    plan_only: ClassVar[tuple[str, ...]] = (
        *("samples", "preset", "allow_code_execution", "include_path"),
    )
    tasks: shared_options.Tasks = None
    cases: shared_options.Cases = None
    requests: shared_options.Requests = None
    dataset_root: shared_options.DatasetRoot = None
    model: shared_options.Model = None
    samples: shared_options.Samples = None
    limit: shared_options.Limit = None
    seed: shared_options.Seed = None
    server_defaults: shared_options.ServerDefaultsOption = None
    settings: shared_options.Set = None
    preset: shared_options.Preset = None
    effort: shared_options.Effort = None
    allow_code_execution: shared_options.AllowCodeExecution = None
    allow_meaningless: shared_options.AllowMeaningless = None
    include_path: shared_options.IncludePath = None


@freeze
class RehearsedPromptOptions(SidePromptOptions):
    """Choose the prompts, and whether servers that are started are the stand-in."""

    rehearse: shared_options.Rehearse = None


@freeze
class SideProtocolOptions:
    """Choose the protocol of all tasks, on both sides of a comparison."""

    title: ClassVar[str] = "Protocol of all tasks"
    apply_chat_template: shared_options.ApplyChatTemplate = None


@freeze
class PacingOptions:
    """Choose how requests are sent, except how many at a time."""

    title: ClassVar[str] = "Requests"
    plan_only: ClassVar[tuple[str, ...]] = ("api_key_env", "header")
    rate_limit: shared_options.RateLimit = None
    requests_per_minute: shared_options.RequestsPerMinute = None
    order: shared_options.Order = None
    order_seed: shared_options.OrderSeed = None
    stream: shared_options.Stream = None
    pace: shared_options.PaceOption = None
    api_key_env: shared_options.ApiKeyEnv = None
    header: shared_options.Header = None
    ca_bundle: shared_options.CaBundle = None
    client_cert: shared_options.ClientCert = None
    client_key: shared_options.ClientKey = None
    client_key_password_env: shared_options.ClientKeyPasswordEnv = None


@freeze
class SendingOptions(PacingOptions):
    """Choose how requests are sent to each endpoint."""

    concurrency: Annotated[
        int | None,
        Setting(
            "Requests in flight at each endpoint (default 64).",
            metavar="N",
            key="limits.concurrency",
        ),
    ] = None


_NOT_OF_SIDES = {
    "base_url": "name the endpoint as an argument, or in its plan",
    "output_dir": "write -o DIR",
    "shard": "only serve-eval run asks a part of the samples",
}
"""Keys that --set would give to both sides, and what to do instead."""


def settings_with(protocol: SideProtocolOptions, *sections: object) -> dict[str, Any]:
    """Return the given options as settings of both sides.

    Raises PlanError for a key that cannot hold for both.
    """

    settings = settings_of(*sections)
    if wrong := [f"--set {one}: {_NOT_OF_SIDES[one]}" for one in _NOT_OF_SIDES if one in settings]:
        raise PlanError(wrong)
    if choices := {**settings.get("choices", {}), **settings_of(protocol)}:
        settings["choices"] = choices
    return settings


def new_folder(command: str) -> Path:
    """Return the default folder of a command, named by the time."""
    from serve_eval.storage.command_folder import claim_default_folder

    return claim_default_folder(command)


def is_endpoint(text: str) -> bool:
    """Return True if a side is the address of a running endpoint."""
    return not Path(text).exists() and not text.endswith((".yaml", ".yml"))


def find_endpoint_plan(text: str, settings: dict[str, Any], **how: Any) -> Plan:
    """Return the plan of an address or of a plan file, as `with_plan` resolves it."""

    if Path(text).is_dir():
        raise PlanError(f"{text} is a finished run; name a running endpoint or a plan file")
    if is_endpoint(text):
        given = {**settings, "base_url": text}
        return with_plan(_read_defaults({}), given, **how).plan
    return resolve_side(text, settings, **how)[0].plan


def resolve_side(text: str, settings: dict[str, Any], **how: Any) -> tuple[Resolved, Path | None]:
    """Return the plan of a file or run folder, and that folder (None for a file).

    The plan of a file is resolved as `with_plan` does.
    """
    from serve_eval.evaluation.trust import to_read
    from serve_eval.plan.plan_file import to_file
    from serve_eval.yaml_source import read

    path = Path(text)
    if path.is_dir():
        included = settings.get("include_path", ())
        saved = to_file(to_read(path, included, writes=False, replaced=("verdict",)))
        saved = {key: value for key, value in saved.items() if key not in ("verdict", "early_stop")}
        judged = [one for one in settings.get("set", ()) if one.startswith("verdict.")]
        kept: dict[str, Any] = {
            name: settings[name] for name in ("verdict", "include_path") if name in settings
        }
        return with_plan(saved, {**kept, "set": judged}), path
    document = read(path, PlanError)
    if not isinstance(document.value, dict):
        raise PlanError(f"{path}: expected a mapping of keys such as model and tasks")
    content = {
        key: value for key, value in document.value.items() if key not in ("verdict", "early_stop")
    }
    return with_plan(
        _read_defaults(content),
        settings,
        lambda *place: f"{path}:{document.line(*place)}: ",
        **how,
    ), None


def _read_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a plan file with the user's defaults for what it leaves out."""
    from serve_eval.plan.settings import read_defaults

    return read_defaults().put_below(content)


def inherit_variables() -> dict[str, str]:
    """Return the variables of the environment but those that name an endpoint or ask for less."""
    replaced = ("OPENAI_BASE_URL", "INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
    return {name: value for name, value in os.environ.items() if name not in replaced}


def with_plan(
    document: dict[str, Any],
    settings: dict[str, Any],
    line: Any = None,
    *,
    makes_references: bool = False,
    needs_address: bool = True,
    address: str | None = None,
) -> Resolved:
    """Return the plan of a side. Raises PlanError if it `needs_address` and names no endpoint.

    Variables that name an endpoint, or ask for less, are ignored: they would apply to both sides.
    A command with one side gives the `address` of a plan that names none.
    """
    from serve_eval.plan.resolve import resolve

    if address and document.get("base_url") is None and document.get("launcher") is None:
        document = {**document, "base_url": address}
    prefix = [] if line is None else [line]
    return resolve(
        document,
        settings,
        inherit_variables(),
        *prefix,
        makes_references=makes_references,
        needs_address=needs_address,
    )
