"""Run `serve-eval verify`: find out whether servers still serve the model that was deployed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._sides import (
    RehearsedPromptOptions,
    SendingOptions,
    SideProtocolOptions,
    new_folder,
    settings_with,
)
from serve_eval.cli._streams import say
from serve_eval.cli._verify_options import (
    FurtherServerOptions,
    GivenServer,
    PartOptions,
    ProbeOptions,
    ReferenceOptions,
    VerifyOutputOptions,
    check_pods,
    choose_route,
    open_given,
    plan_siblings,
    read_servers,
    to_plans,
)
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze

if TYPE_CHECKING:
    from serve_eval.evidence.prompt_tokens import PromptSide
    from serve_eval.schema import Verification, VerificationReference
    from serve_eval.workflows.verify.servers import VerifyRules


USUAL = (
    "sibling",
    "register",
    "reference",
    "fleet",
    "server_file",
    "pods",
    "floor",
    "probes",
    "tasks",
    "model",
    "output_dir",
    "as_json",
)
EXAMPLES = (
    ("Compare a new deployment with the old one:", "serve-eval verify old:8000 new:8000"),
    (
        "Keep a reference, with the floor of a healthy server of another setting:",
        "serve-eval verify host:8000 --sibling other-gpu:8000 --register llama.json",
    ),
    (
        "Check a deployment against it, tomorrow or after an update:",
        "serve-eval verify host:8000 --reference llama.json",
    ),
    ("Find the replica that differs:", "serve-eval verify --fleet --pods app=llama"),
)
TASK = "word_problems"
"""Task whose prompts give the texts if nothing else is named. It needs no data set."""


@command(usual=USUAL, examples=EXAMPLES)
def verify(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B",
            help=(
                "Running endpoints (host:port or URL), plan files or run folders. Without"
                " --reference, --register and --fleet, the first is the reference."
            ),
        ),
    ] = None,
    *,
    more: FurtherServerOptions,
    reference: ReferenceOptions,
    probes: ProbeOptions,
    parts: PartOptions,
    prompts: RehearsedPromptOptions,
    protocol: SideProtocolOptions,
    sending: SendingOptions,
    output: VerifyOutputOptions,
    faces: FaceOptions,
) -> None:
    """Find out in seconds whether servers still serve the model that was deployed.

    Each server is asked for two tokens after texts whose next token is uncertain, and the
    log-probabilities are compared with those of a reference.

    Exit codes: 0 the same model, 1 another model, precision or cache, or a fault of single
    requests, 2 usage, 3 undecided or not comparable, 4 endpoint or infrastructure, 130 interrupted.
    """
    from serve_eval.cli._async import Interrupted
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.evidence.prompt_tokens import open_local
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.verify.servers import PROBES, VerifyRules

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    _check(reference, probes)
    check_pods(more)
    settings = settings_with(protocol, prompts, sending)
    settings.setdefault("tasks", [TASK])
    choices = settings.get("choices", {})
    named = [GivenServer(name=text, text=text) for text in servers or ()]
    if more.server_file is not None:
        named += read_servers(more.server_file)
    if more.pods is None:  # Else the pods are found first.
        _check_number(len(named), reference)
    asked = _Asked(
        named=named,
        pods=more,
        settings=settings,
        workers=parts.worker or [],
        tokenizer=None if probes.tokenizer is None else open_local(Path(probes.tokenizer)),
        reference=reference,
        rules=VerifyRules(
            probes=PROBES if probes.probes is None else probes.probes,
            tokens=probes.budget_tokens,
            floor=reference.floor,
            seed=settings.get("seed") or 0,
            text=probes.text,
            route=choose_route(choices.get("apply_chat_template")),
        ),
        out_dir=output.output_dir or new_folder("verify"),
    )
    try:
        code = _execute(asked, faces)
    except Interrupted:
        say("Interrupted; nothing was saved")
        code = INTERRUPTED
    raise typer.Exit(code)


@freeze
class _Asked:
    """The options of a verification: its servers, the settings of their plans, and the rules."""

    named: list[GivenServer]
    pods: FurtherServerOptions
    settings: dict[str, Any]
    workers: list[str]
    tokenizer: PromptSide | None
    reference: ReferenceOptions
    rules: VerifyRules
    out_dir: Path


def _check(reference: ReferenceOptions, probes: ProbeOptions) -> None:
    """Raise PlanError for options that do not fit together."""
    from serve_eval.evidence.probe_floor import LARGEST_FLOOR

    if reference.register is not None and reference.reference is not None:
        raise PlanError("--register makes a reference and --reference uses one: give one of them")
    if reference.fleet and (reference.register or reference.reference or reference.sibling):
        raise PlanError("--fleet uses no reference: leave out --register, --reference, --sibling")
    if reference.reference is not None and reference.sibling is not None:
        raise PlanError("--sibling: the reference file already has what a sibling measures")
    if probes.probes is not None and probes.probes < 1:
        raise PlanError("--probes must be 1 or more")
    if probes.budget_tokens is not None and probes.budget_tokens < 1:
        raise PlanError("verify.budget_tokens must be 1 or more")
    if reference.floor is not None and not 0 < reference.floor < LARGEST_FLOOR:
        raise PlanError(
            f"--floor must be above 0 and below {LARGEST_FLOOR:.3g} nats, as in 0.08",
            hint="A sibling that answers bit for bit alike measures no floor: register with one of"
            " another healthy setting, such as another batch size or GPU.",
        )


def _check_number(servers: int, reference: ReferenceOptions) -> None:
    """Raise PlanError for a number of servers that does not fit the reference."""
    from serve_eval.workflows.verify.fleet import LEAST_SERVERS

    if reference.register is not None and servers != 1:
        raise PlanError("--register takes one server")
    if reference.fleet and servers < LEAST_SERVERS:
        raise PlanError(f"--fleet: a majority takes {LEAST_SERVERS} servers or more")
    alone = reference.register is not None or reference.reference is not None
    if servers < (1 if alone else 2):
        raise PlanError(
            "name a server to verify" if alone else "name a reference and a server to verify",
            hint="For example: serve-eval verify old:8000 new:8000, or use --reference FILE.",
        )


def _execute(asked: _Asked, faces: FaceOptions) -> int:
    """Register or verify, with remarks on stderr and the result on stdout. Return the exit code."""
    from serve_eval.cli._async import run_async
    from serve_eval.cli._ending import end
    from serve_eval.storage.story_results import read_reference, write_reference
    from serve_eval.workflows.verify.document import make_document, make_registered

    file, model = asked.reference.register, str(asked.settings.get("model") or "")
    if file is not None:
        made = run_async(_register(asked))
        write_reference(file, made)
        address = asked.named[0].text if asked.named else ""
        return end(make_registered(made, file, address, model), faces)
    known = asked.reference.reference
    reference = None if known is None else read_reference(known)
    with ExitStack() as stack:
        found, used, addresses = run_async(_verify(asked, reference, stack))
        out_dir = asked.out_dir
        addresses = write_result(found, used if known is None else None, out_dir, addresses)
        return end(make_document(found, out_dir, addresses, model), faces, folder=out_dir)


def _tell() -> dict[str, Any]:
    """Return where progress and remarks go: to standard error."""
    from serve_eval.cli._progress import show_progress

    return {"progress": show_progress(), "notify": say}


async def _register(asked: _Asked) -> VerificationReference:
    from serve_eval.schema import is_rehearsal
    from serve_eval.workflows.verify.verify import register

    async with open_given(asked.named, asked.pods, say) as given:
        _check_number(len(given), asked.reference)
        [server] = to_plans(given, asked.settings)
        if is_rehearsal(server.plan):
            raise PlanError(
                "--register: the stand-in of a rehearsal is no reference",
                hint="Leave --rehearse out.",
            )
        siblings = plan_siblings(asked.reference.sibling or (), [server], asked.settings)
        return await register(server, siblings, asked.rules, asked.out_dir, **_tell())


async def _verify(
    asked: _Asked, known: VerificationReference | None, stack: ExitStack
) -> tuple[Verification, VerificationReference, dict[str, str]]:
    """Return the result, the reference, and the address of each server that has a lasting one.

    The folder stays locked until the stack ends.
    """
    from serve_eval.storage.command_folder import occupy
    from serve_eval.storage.story_files import VERIFY
    from serve_eval.workflows.verify.legs import parse_worker
    from serve_eval.workflows.verify.verify import verify, verify_fleet

    async with open_given(asked.named, asked.pods, say) as given:
        _check_number(len(given), asked.reference)
        named = to_plans(given, asked.settings)
        addresses = {one.name: one.text for one in given if one.lasts}
        stack.enter_context(occupy(asked.out_dir, VERIFY.plan))  # view: it still runs
        telling = _tell()
        asked.out_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        VERIFY.write_plan(asked.out_dir, {"servers": [one.name for one in named]})
        if asked.reference.fleet:
            found, used = await verify_fleet(named, asked.rules, asked.out_dir, **telling)
            return found, used, addresses
        found, used = await verify(
            named[0] if known is None else known,
            named[1:] if known is None else named,
            plan_siblings(asked.reference.sibling or (), named, asked.settings),
            asked.rules,
            asked.out_dir,
            source=str(asked.reference.reference or ""),
            workers=[parse_worker(text, named[-1]) for text in asked.workers],
            tokenizer=asked.tokenizer,
            **telling,
        )
        return found, used, addresses


def write_result(
    found: Verification,
    used: VerificationReference | None,
    out_dir: Path,
    addresses: Mapping[str, str],
) -> dict[str, str]:
    """Write the result, and the reference that it made, into the folder.

    Return `addresses`, those with which a further command reaches the servers, by name: of servers
    that a night stops, the plan is what starts them again.
    """
    from serve_eval.storage.file_names import VERIFICATION_REFERENCE
    from serve_eval.storage.folder_results import find_served_plans, shorten_url
    from serve_eval.storage.story_files import VERIFY
    from serve_eval.storage.story_results import write_reference
    from serve_eval.workflows.verify.result import lacks_floor

    VERIFY.write(out_dir, found)
    if used is not None:
        write_reference(out_dir / VERIFICATION_REFERENCE, used)
    plans = find_served_plans(out_dir) if lacks_floor(found) else {}
    return {name: plans.get(shorten_url(place), place) for name, place in addresses.items()}
