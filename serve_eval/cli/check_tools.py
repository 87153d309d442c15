"""Run `check tools`: check tool calls and guided decoding, whole, streamed and under load."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions, parse_loads
from serve_eval.cli._options import command, settings_of
from serve_eval.cli._sides import EndpointArgument, find_endpoint_plan, new_folder
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plan.shared_options import names_of
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.schema import Plan

EXAMPLES = (
    ("Check tool calls and guided decoding at four loads:", "serve-eval check tools host:8000"),
    (
        "Ask fewer requests, one at a time and at 16:",
        "serve-eval check tools host:8000 --limit 100 --concurrency 1,16",
    ),
    (
        "Only guided decoding:",
        "serve-eval check tools host:8000 --set tools.kinds=json_object",
    ),
    (
        "Compare an update with the server before it:",
        "serve-eval check tools host:8000 --reference outputs/BEFORE",
    ),
)


@freeze
class ToolSetOptions:
    """Choose the requests."""

    title: ClassVar[str] = "Requests to ask"
    model: shared_options.Model = None
    limit: shared_options.Limit = None
    seed: shared_options.Seed = None
    settings: shared_options.Set = None
    loads: Annotated[
        str | None,
        Setting(
            "Numbers of requests in flight (default 1,8,32,128).",
            flags=("--concurrency",),
            metavar="N,N,...",
        ),
    ] = None


@freeze
class ToolKindOptions:
    """Choose the kinds of requests, and how many errors are too many."""

    title: ClassVar[str] = ToolSetOptions.title
    command: ClassVar[str] = "tools"
    kinds: Annotated[
        list[str] | None,
        Setting(
            "Kinds of requests (default: all that work). Repeatable.",
            metavar="NAMES",
            flag=False,
        ),
    ] = None
    max: Annotated[
        list[str] | None,
        Setting(
            "Largest share of answers with an error: 'invalid JSON=0.05'. Repeatable.",
            metavar="ERROR=SHARE",
            variable="never",
            flag=False,
        ),
    ] = None


@freeze
class ToolRuleOptions:
    """Choose what fails."""

    title: ClassVar[str] = "Verdict"
    reference: Annotated[
        Path | None,
        Setting("Folder of an earlier check to compare with, request by request.", metavar="DIR"),
    ] = None
    require: Annotated[
        list[str] | None,
        Setting(
            "Kinds that must be supported: required,regex,... or refusals. Repeatable.",
            metavar="NAMES",
        ),
    ] = None


@freeze
class ToolSendingOptions:
    """Choose how requests are sent."""

    title: ClassVar[str] = "Requests"
    plan_only: ClassVar[tuple[str, ...]] = ("api_key_env", "header")
    rate_limit: shared_options.RateLimit = None
    requests_per_minute: shared_options.RequestsPerMinute = None
    api_key_env: shared_options.ApiKeyEnv = None
    header: shared_options.Header = None


@freeze
class ToolResultOptions:
    """Choose the folder and the output."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_tools). An existing one is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None


@command(examples=EXAMPLES)
def check_tools(
    a: EndpointArgument,
    asked: ToolSetOptions,
    chosen: ToolKindOptions,
    rule: ToolRuleOptions,
    sending: ToolSendingOptions,
    result: ToolResultOptions,
    faces: FaceOptions,
) -> None:
    """Check tool calls, guided decoding and streams of an endpoint, and name what is at fault.

    Some 370 generated requests are asked whole and streamed, at several numbers in flight. Errors
    are counted by kind, and each points to a parser, a stream or guided decoding. With the same
    -o, the command resumes.

    Exit codes: 0 nothing found, 1 an error accuses the server, 2 usage, 3 too few answers, or
    most of them cut, 4 endpoint or infrastructure, 5 no answers, 130 interrupted.
    """
    from serve_eval.cli._ending import ask_and_end
    from serve_eval.storage.story_files import TOOLS
    from serve_eval.tasks.tool_calls import KINDS
    from serve_eval.workflows.tools import LOADS, ToolRules, check_limits, make_document
    from serve_eval.workflows.tools import check_tools as measure_tools
    from serve_eval.workflows.tools.asking import REFUSALS

    kinds, needed = names_of(chosen.kinds) or [], names_of(rule.require) or []
    if unknown := sorted({*kinds, *needed} - {*KINDS, REFUSALS}):
        raise PlanError(f"unknown kinds: {', '.join(unknown)}", hint=f"Known: {', '.join(KINDS)}.")
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    limits = _read_limits(chosen.max or ())
    check_limits(limits)
    settings: dict[str, Any] = {**settings_of(asked, sending), "tasks": ["tool_calls"]}
    settings.pop("loads", None)
    plan = _restrict(find_endpoint_plan(a, settings), kinds)
    rules = ToolRules(limits=limits, reference=rule.reference, needed=frozenset(needed))
    loads = LOADS if asked.loads is None else parse_loads(asked.loads)
    folder = result.output_dir or new_folder("tools")
    ask = partial(measure_tools, plan, folder, loads, rules=rules)
    raise typer.Exit(ask_and_end("check tools", ask, make_document, folder, TOOLS.plan, faces))


def _restrict(plan: Plan, kinds: Sequence[str]) -> Plan:
    from serve_eval.workflows.tools.asking import choose_kinds

    return choose_kinds(plan, kinds) if kinds else plan


def _read_limits(texts: Sequence[str]) -> dict[str, float]:
    limits = {}
    for text in texts:
        name, _, share = text.rpartition("=")
        try:
            limits[name.strip()] = float(share)
        except ValueError:
            raise PlanError(
                f"tools.max: {text}: expected ERROR=SHARE",
                hint="Such as --set 'tools.max=invalid JSON=0.05'.",
            ) from None
    return limits
