"""Run `check invariants`: test an endpoint under changes that must not change answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._sides import (
    EndpointArgument,
    SendingOptions,
    SidePromptOptions,
    SideProtocolOptions,
    find_endpoint_plan,
    new_folder,
    settings_with,
)
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

UNUSED_TASK = "word_problems"
"""Task of a plan for canaries, which asks none of them. It needs no data set."""
EXAMPLES = (
    (
        "Ask 200 problems in several passes, each with one change:",
        "serve-eval check invariants host:8000 -t gsm8k --dataset-root D --limit 200",
    ),
    (
        "Start the server from a plan, so that its cache is empty at first:",
        "serve-eval check invariants PLAN.yaml -o OUT",
    ),
    (
        "Also render the chat here, with this tokenizer:",
        "serve-eval check invariants PLAN.yaml --set invariants.tokenizer=DIR",
    ),
    (
        "Also fill the KV cache with other prompts, and ask the old ones again:",
        "serve-eval check invariants host:8000 --set invariants.kv_pressure=2000000",
    ),
    (
        "Only look for data of one request in the replies to others:",
        "serve-eval check invariants host:8000 --canaries",
    ),
)


@freeze
class PassOptions:
    """Choose the passes."""

    title: ClassVar[str] = "Passes"
    command: ClassVar[str] = "invariants"
    tokenizer: Annotated[
        str | None,
        Setting(
            "Folder with the chat template: adds a pass that renders it here.",
            metavar="DIR",
            flag=False,
        ),
    ] = None
    chunk_tokens: Annotated[
        list[int] | None,
        Setting(
            "Chunk size in tokens to try (default 2048 and 8192; 0: none). Repeatable.",
            metavar="N",
            variable="never",
            flag=False,
        ),
    ] = None
    kv_pressure: Annotated[
        int | None,
        Setting(
            "Also fill the KV cache with up to N tokens of other prompts (default 0: not), and ask"
            " again.",
            metavar="N",
            flag=False,
        ),
    ] = None
    canaries: Annotated[
        bool,
        Setting(
            "Only send prompts with random codes (400, or --limit) and look for codes in replies"
            " to other prompts."
        ),
    ] = False


@freeze
class InvariantsResultOptions:
    """Choose the folder."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_invariants). An existing one is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None


@command(examples=EXAMPLES)
def check_invariants(
    a: EndpointArgument,
    prompts: SidePromptOptions,
    protocol: SideProtocolOptions,
    passes: PassOptions,
    sending: SendingOptions,
    result: InvariantsResultOptions,
    faces: FaceOptions,
) -> None:
    """Ask an endpoint the same prompts under changes that must not change any answer.

    The changes concern the cache, the order, the batch and streaming. No right answers and no
    reference are needed. Without --limit, 100 prompts per task are asked. With the same -o, the
    command resumes an interrupted check. With --canaries, it only looks for leaks between requests.

    Exit codes: 0 no invariant that was tested is broken, 1 one is broken or a request received data
    of another, 2 usage, 4 endpoint or infrastructure, 5 no answers, or most of them cut within the
    model's thoughts, 130 interrupted.
    """
    from serve_eval.cli._ending import ask_and_end
    from serve_eval.storage.story_files import CANARIES, INVARIANTS
    from serve_eval.workflows.invariants import canary_document
    from serve_eval.workflows.invariants.canaries import check_canaries
    from serve_eval.workflows.invariants.check import CHUNKS, check
    from serve_eval.workflows.invariants.document import make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    for size in passes.chunk_tokens or ():
        if size < 0:
            raise PlanError("invariants.chunk_tokens must be 0 or more")
    if passes.kv_pressure is not None and passes.kv_pressure < 0:
        raise PlanError("invariants.kv_pressure must be 0 or more")
    settings = settings_with(protocol, prompts, sending)
    if passes.canaries:
        _check_canary_options(prompts, settings, passes)
        settings.setdefault("tasks", [UNUSED_TASK])
    folder = str(Path(passes.tokenizer).expanduser().absolute()) if passes.tokenizer else None
    chunks = (
        CHUNKS
        if passes.chunk_tokens is None
        else tuple(size for size in passes.chunk_tokens if size)
    )
    out_dir = result.output_dir or new_folder("canaries" if passes.canaries else "invariants")
    plan = find_endpoint_plan(a, settings)
    if passes.canaries:
        code = ask_and_end(
            "check invariants --canaries",
            partial(check_canaries, plan, out_dir),
            canary_document.make_document,
            out_dir,
            CANARIES.plan,
            faces,
        )
        raise typer.Exit(code)
    ask = partial(
        check,
        plan,
        out_dir,
        tokenizer=folder,
        chunk_tokens=chunks,
        kv_pressure=passes.kv_pressure or 0,
    )
    code = ask_and_end("check invariants", ask, make_document, out_dir, INVARIANTS.plan, faces)
    raise typer.Exit(code)


def _check_canary_options(
    prompts: SidePromptOptions, settings: dict[str, Any], passes: PassOptions
) -> None:
    """Raise PlanError for options of the other passes."""

    choices = settings.get("choices", {})
    given = {
        "--tasks": prompts.tasks,
        "--cases": settings.get("cases"),
        "--set protocol.apply_chat_template=true": choices.get("apply_chat_template"),
        "--set invariants.tokenizer": passes.tokenizer,
        "--set invariants.chunk_tokens": passes.chunk_tokens,
        "--set invariants.kv_pressure": passes.kv_pressure,
    }
    if named := [name for name, value in given.items() if value]:
        raise PlanError(
            f"--canaries sends prompts of its own: leave out {', '.join(named)}",
            hint="Run the other checks without --canaries.",
        )
