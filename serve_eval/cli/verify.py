"""Run `serve-eval verify`: find out whether servers still serve the model that was deployed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._options import command
from serve_eval.cli._sides import (
    SendingOptions,
    SidePromptOptions,
    SideProtocolOptions,
    is_endpoint,
    new_folder,
    resolve_side,
    settings_with,
    with_plan,
)
from serve_eval.cli._verify_options import (
    PartOptions,
    ProbeOptions,
    ReferenceOptions,
    VerifyOutputOptions,
)

if TYPE_CHECKING:
    from serve_eval.evaluation.prompt_audit.reading import PromptSide
    from serve_eval.schema import VerificationReference
    from serve_eval.workflows.verify.legs import GivenWorker
    from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules

USUAL = (
    "sibling",
    "register",
    "reference",
    "floor",
    "probes",
    "tasks",
    "text",
    "model",
    "output_dir",
    "as_json",
)
EXAMPLES = (
    ("Compare a new deployment with the old one:", "serve-eval verify old:8000 new:8000"),
    (
        "Keep a reference, with the floor that a healthy replica shows:",
        "serve-eval verify host:8000 --sibling host2:8000 --register llama.json",
    ),
    (
        "Check a deployment against it, tomorrow or after an update:",
        "serve-eval verify host:8000 --reference llama.json",
    ),
)
TASK = "word_problems"
"""Task whose prompts give the texts if nothing else is named. It needs no data set."""


@command(usual=USUAL, examples=EXAMPLES)
def verify(
    servers: Annotated[
        list[str],
        typer.Argument(
            metavar="[A] B...",
            help=(
                "Running endpoints (host:port or URL), plan files or run folders. Without"
                " --reference and --register, the first is the reference."
            ),
        ),
    ],
    reference: ReferenceOptions,
    probes: ProbeOptions,
    parts: PartOptions,
    prompts: SidePromptOptions,
    protocol: SideProtocolOptions,
    sending: SendingOptions,
    output: VerifyOutputOptions,
) -> None:
    """Find out in seconds whether servers still serve the model that was deployed.

    Each server is asked for two tokens after texts whose next token is uncertain, and the
    log-probabilities are compared with those of a reference.

    Exit codes: 0 the same model, 1 another model, precision or cache, 2 usage, 3 undecided or not
    comparable, 4 endpoint or infrastructure, 130 interrupted.
    """
    from serve_eval.cli._async import Interrupted
    from serve_eval.cli._streams import say
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.prompt_audit.local import open_local
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.verify.legs import parse_worker
    from serve_eval.workflows.verify.servers import PROBES, VerifyRules

    _check(servers, reference, probes)
    settings = settings_with(protocol, prompts, sending)
    settings.setdefault("tasks", [TASK])
    rules = VerifyRules(
        probes=PROBES if probes.probes is None else probes.probes,
        floor=reference.floor,
        seed=prompts.seed or 0,
        text=probes.text,
    )
    named = [_name(text, settings) for text in servers]
    names = [one.name for one in named]
    if len(set(names)) < len(names):
        raise PlanError("a server is named twice", hint="Name each server once.")
    sibling = None if reference.sibling is None else _name(reference.sibling, settings)
    out_dir = output.output_dir or new_folder("verify")
    try:
        more = _Parts(
            workers=[parse_worker(text, named[-1]) for text in parts.worker or ()],
            tokenizer=None if probes.tokenizer is None else open_local(Path(probes.tokenizer)),
        )
        code = _execute(named, sibling, more, rules, reference, out_dir, as_json=output.as_json)
    except Interrupted:
        say("Interrupted; nothing was saved")
        code = INTERRUPTED
    raise typer.Exit(code)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts that are checked too: servers of a deployment, and tokens of prompts."""

    workers: list[GivenWorker]
    tokenizer: PromptSide | None


def _check(servers: list[str], reference: ReferenceOptions, probes: ProbeOptions) -> None:
    """Raise PlanError for options that do not fit together."""
    from serve_eval.errors import PlanError

    if reference.register is not None and reference.reference is not None:
        raise PlanError("--register makes a reference and --reference uses one: give one of them")
    if reference.register is not None and len(servers) > 1:
        raise PlanError("--register takes one server")
    if reference.fleet:
        _check_fleet(servers, reference)
    if reference.register is None and reference.reference is None and len(servers) < 2:
        raise PlanError(
            "name a reference and a server to verify",
            hint="For example: serve-eval verify old:8000 new:8000, or use --reference FILE.",
        )
    if reference.reference is not None and reference.sibling is not None:
        raise PlanError("--sibling: the reference file already has what a sibling measures")
    if probes.probes is not None and probes.probes < 1:
        raise PlanError("--probes must be 1 or more")
    if reference.floor is not None and not 0 < reference.floor < 100:
        raise PlanError("--floor must be a positive number of nats, such as 0.08")


def _check_fleet(servers: list[str], reference: ReferenceOptions) -> None:
    """Raise PlanError for options that do not fit a majority."""
    from serve_eval.errors import PlanError
    from serve_eval.workflows.verify.fleet import LEAST_SERVERS

    if reference.register or reference.reference or reference.sibling:
        raise PlanError("--fleet uses no reference: leave out --register, --reference, --sibling")
    if len(servers) < LEAST_SERVERS:
        raise PlanError(f"--fleet: a majority takes {LEAST_SERVERS} servers or more")


def _name(text: str, settings: dict[str, Any]) -> NamedPlan:
    """Return a server with its name: what the user wrote."""
    from serve_eval.workflows.verify.servers import NamedPlan

    if is_endpoint(text):
        plan = with_plan({}, {**settings, "base_url": text}).plan
    else:
        plan = resolve_side(text, settings)[0].plan
    return NamedPlan(name=text, plan=replace(plan, no_reference=True))


def _execute(
    named: list[NamedPlan],
    sibling: NamedPlan | None,
    more: _Parts,
    rules: VerifyRules,
    reference: ReferenceOptions,
    out_dir: Path,
    *,
    as_json: bool,
) -> int:
    """Register or verify, with remarks on stderr and the result on stdout. Return the exit code."""
    from serve_eval.cli._async import run_async
    from serve_eval.cli._streams import draw, say
    from serve_eval.cli._verified import show_verified
    from serve_eval.evaluation.storage.reports.verification_files import (
        read_reference,
        write_reference,
    )
    from serve_eval.verdicts.exit_code import PASS
    from serve_eval.workflows.verify.text import render_reference
    from serve_eval.workflows.verify.verify import register, verify, verify_fleet

    if reference.register is not None:
        file = reference.register
        made = run_async(register(named[0], sibling, rules, out_dir, notify=say))
        write_reference(file, made)
        draw(lambda console: render_reference(made, file, console))
        return PASS
    if reference.fleet:
        found, used = run_async(verify_fleet(named, rules, out_dir, notify=say))
        return show_verified(found, used, out_dir, as_json=as_json)
    known: NamedPlan | VerificationReference = (
        named[0] if reference.reference is None else read_reference(reference.reference)
    )
    servers = named[1:] if reference.reference is None else named
    found, used = run_async(
        verify(
            known,
            servers,
            sibling,
            rules,
            out_dir,
            source=str(reference.reference or ""),
            workers=more.workers,
            tokenizer=more.tokenizer,
            notify=say,
        )
    )
    return show_verified(
        found, used if reference.reference is None else None, out_dir, as_json=as_json
    )
