"""Run `serve-eval check load`: measure accuracy over the number of requests in flight."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions, parse_loads
from serve_eval.cli._options import command
from serve_eval.cli._sides import (
    EndpointArgument,
    PacingOptions,
    RehearsedPromptOptions,
    SideProtocolOptions,
    find_endpoint_plan,
    new_folder,
    settings_with,
)
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    pass

EXAMPLES = (
    (
        "Ask the same problems at five loads:",
        "serve-eval check load host:8000 -t gsm8k --dataset-root DIR",
    ),
    (
        "Choose the loads and the number of prompts:",
        "serve-eval check load host:8000 -t gsm8k --concurrency 1,8,32 --limit 400",
    ),
    (
        "Find the first load from 1 to 64 that breaks, with few requests:",
        "serve-eval check load host:8000 -t gsm8k --concurrency 1,64 --bisect",
    ),
    (
        "Check guided decoding under load:",
        "serve-eval check load host:8000 -t json_mode_eval --concurrency 1,8,32",
    ),
)


@freeze
class LoadsOptions:
    """Choose the loads."""

    title: ClassVar[str] = "Loads"
    command: ClassVar[str] = "load"
    loads: Annotated[
        str | None,
        Setting(
            "Numbers of requests in flight (default 1,4,16,64,256).",
            flags=("--concurrency",),
            metavar="N,N,...",
        ),
    ] = None
    bisect: Annotated[
        bool,
        Setting("Only compare the lowest and the highest load, and halve between them."),
    ] = False


@freeze
class LoadResultOptions:
    """Choose the folder."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_load). An existing one is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None


@command(examples=EXAMPLES)
def check_load(
    a: EndpointArgument,
    prompts: RehearsedPromptOptions,
    protocol: SideProtocolOptions,
    loads: LoadsOptions,
    sending: PacingOptions,
    result: LoadResultOptions,
    faces: FaceOptions,
) -> None:
    """Ask an endpoint the same prompts at several loads, and name the loads that lose accuracy.

    A load is a number of requests in flight. Without --limit, 200 prompts per task are asked, or
    twice the highest load if that is more. Answers are streamed, unless limits.stream is false.
    With the same -o, the command resumes an interrupted check.

    Exit codes: 0 nothing found, 1 a load is broken, 2 usage, 3 inconclusive or changed over time, 4
    endpoint or infrastructure, 5 no answers, 130 interrupted.
    """
    from serve_eval.cli._ending import ask_and_end
    from serve_eval.storage.story_files import LOAD
    from serve_eval.workflows.load.document import make_document
    from serve_eval.workflows.load.story import LOADS, check_loads, measure_load

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    settings = settings_with(protocol, prompts, sending)
    settings.setdefault("stream", True)
    asked = LOADS if loads.loads is None else check_loads(parse_loads(loads.loads))
    out_dir = result.output_dir or new_folder("load")
    plan = find_endpoint_plan(a, settings)
    ask = partial(measure_load, plan, out_dir, asked, bisect=loads.bisect)
    raise typer.Exit(ask_and_end("check load", ask, make_document, out_dir, LOAD.plan, faces))
