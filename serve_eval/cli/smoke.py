"""Run `serve-eval smoke`: check in seconds what an endpoint supports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._address import ADDRESS_HELP, address_of
from serve_eval.cli._common_options import Quiet
from serve_eval.cli._options import command
from serve_eval.evaluation.plan import shared_options as shared
from serve_eval.evaluation.plan.flag_values import names_of
from serve_eval.evaluation.plan.options import ConnectionOptions
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.checks.check import Check
    from serve_eval.checks.row import CheckRow
    from serve_eval.schema import Plan
    from serve_eval.workflows.smoke.smoke import Smoke

EXAMPLES = (
    ("Check a new deployment:", "serve-eval smoke host:8000"),
    (
        "Fail if a feature that you need is missing:",
        "serve-eval smoke host:8000 --require chat,json_schema",
    ),
    (
        "Run more checks and write a JUnit file for CI:",
        "serve-eval smoke host:8000 --level full --junit smoke.xml",
    ),
)
SHOWN = 2000
"""Most characters of a curl line in the table; --json and --junit have all of it."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Choose the checks."""

    title: ClassVar[str] = "Checks"
    model: shared.Model = None
    level: Annotated[
        str,
        Setting(
            "quick or full; full adds requests that crashed earlier server versions.",
            metavar="LEVEL",
        ),
    ] = "quick"
    require: Annotated[
        list[str] | None,
        Setting(
            "Checks that must not be UNSUPPORTED: chat,json_schema,... Repeatable.",
            metavar="NAMES",
        ),
    ] = None
    passkey: Annotated[
        int | None,
        Setting("Also hide a key in a prompt of this length, and ask for it.", metavar="TOKENS"),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Setting(
            "Also compare the tokens of prompts with the tokenizer and template of this folder.",
            metavar="DIR",
        ),
    ] = None
    context_tokens: Annotated[
        int | None,
        Setting("Context length, if the endpoint does not report it.", metavar="N"),
    ] = None
    timeout: Annotated[
        float, Setting("Time limit of a request (default 60).", metavar="SECONDS")
    ] = 60.0


@dataclass(frozen=True, kw_only=True)
class SmokeResultOptions:
    """Choose the output."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder for junit.xml, summary.md and report.html (default: none is written).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    junit: Annotated[Path | None, Setting("Write the table as a JUnit file.", metavar="FILE")] = (
        None
    )
    page: Annotated[Path | None, Setting("Write the table as a page.", metavar="FILE")] = None
    dry_run: Annotated[bool, Setting("Show the checks and their cost; send nothing.")] = False
    quiet: Quiet = False
    as_json: Annotated[bool, Setting("Print the table as one JSON object.", flags=("--json",))] = (
        False
    )


@command(examples=EXAMPLES)
def smoke(
    asked: CheckOptions,
    connection: ConnectionOptions,
    result: SmokeResultOptions,
    url: Annotated[str | None, typer.Argument(metavar="URL", help=ADDRESS_HELP)] = None,
) -> None:
    """Check what a deployed endpoint supports: PASS, FAIL or UNSUPPORTED for each feature.

    No data set is needed.

    Exit codes: 0 nothing failed, 1 a check failed, 2 usage, 4 the endpoint cannot be reached or
    refuses requests, 130 interrupted.
    """
    from contextlib import ExitStack

    from serve_eval.checks.run import choose_checks
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.plan.resolve import resolve_address
    from serve_eval.evaluation.prompt_audit.local import open_local
    from serve_eval.workflows.smoke import smoke as smoke_test

    _check(asked)
    plan = resolve_address(address_of(url, asked.model, connection), os.environ)
    with ExitStack() as stack:
        local = None if asked.tokenizer is None else open_local(asked.tokenizer)
        if local is not None:
            stack.enter_context(local)
        checks = choose_checks(
            "full" if asked.level == "full" else "quick",
            passkey_tokens=asked.passkey,
            context_tokens=asked.context_tokens,
            local=local,
        )
        needed = smoke_test.check_required(names_of(asked.require) or [], checks)
        if result.dry_run:
            _preview(checks, as_json=result.as_json)
            return
        for flag, file in (("--junit", result.junit), ("--page", result.page)):
            if file is not None and not file.absolute().parent.is_dir():
                raise PlanError(f"{flag}: {file.parent} is not a folder")
        if result.output_dir is not None:
            _make_folder(result.output_dir)
        code = _run(
            plan,
            checks,
            needed,
            timeout_s=asked.timeout,
            context_tokens=asked.context_tokens,
            folder=result.output_dir,
            junit=result.junit,
            page=result.page,
            as_json=result.as_json,
        )
    raise typer.Exit(code)


def _check(asked: CheckOptions) -> None:
    """Raise PlanError for an unknown level, and for numbers that are not above 0."""
    from serve_eval.errors import PlanError

    if asked.level not in ("quick", "full"):
        raise PlanError(f"--level: must be quick or full, not {asked.level!r}")
    numbers = (
        ("passkey", asked.passkey),
        ("context-tokens", asked.context_tokens),
        ("timeout", asked.timeout),
    )
    for name, number in numbers:
        if number is not None and number <= 0:
            raise PlanError(f"--{name} must be above 0")


def _make_folder(folder: Path) -> None:
    """Create the folder of the results. Raises PlanError."""
    from serve_eval.errors import PlanError

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"-o: {folder} cannot be used: {error.strerror}") from error


def _preview(checks: list[Check], *, as_json: bool) -> None:
    import json

    from serve_eval.cli._streams import emit
    from serve_eval.workflows.smoke.smoke import cost

    if as_json:
        shown = [
            {
                name: getattr(one, name)
                for name in ("name", "requests", "tokens", "prompt_tokens", "model")
            }
            for one in checks
        ]
        emit(json.dumps({"checks": shown}) + "\n")
        return
    lines = [f"{one.name:<25} {one.requests:>3} requests  {one.tokens:>5} tokens" for one in checks]
    emit("".join(f"{line}\n" for line in [*lines, cost(checks), "nothing was sent"]))


def _run(
    plan: Plan,
    checks: list[Check],
    needed: frozenset[str],
    *,
    timeout_s: float,
    context_tokens: int | None,
    folder: Path | None,
    junit: Path | None,
    page: Path | None,
    as_json: bool,
) -> int:
    from dataclasses import replace
    from functools import partial

    from serve_eval.checks.curl import curl
    from serve_eval.checks.session import CheckSession
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ci_files import save_ci_files
    from serve_eval.cli._page import save_story_page
    from serve_eval.cli._streams import emit, is_quiet, say
    from serve_eval.client.connection import connect, openai_client
    from serve_eval.evaluation.storage.file_names import PAGE_FILE
    from serve_eval.report.text import clean
    from serve_eval.schema import Endpoint
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.smoke import smoke as smoke_test
    from serve_eval.workflows.smoke.ci import describe_smoke
    from serve_eval.workflows.smoke.page import make_smoke_page

    base_url = str(plan.launcher.options["base_url"])
    plan = replace(
        plan,
        limits=replace(
            plan.limits, connect_timeout_s=min(plan.limits.connect_timeout_s, timeout_s)
        ),
    )
    filled = {name for name, value in os.environ.items() if value.strip()}
    say(f"serve-eval smoke: {base_url}", smoke_test.cost(checks))

    silent = as_json or is_quiet()

    async def main() -> Smoke:
        async with connect(
            plan, Endpoint(base_url=base_url, model=plan.model), os.environ
        ) as client:
            package = partial(openai_client, plan, environ=os.environ, timeout_s=timeout_s)
            session = CheckSession(
                client,
                model=plan.model,
                openai=package,
                timeout_s=timeout_s,
                context_tokens=context_tokens,
            )
            return await smoke_test.smoke(
                session,
                checks,
                needed=needed,
                curl=partial(curl, connection=plan.connection, variables=filled),
                notify=(lambda row: None) if silent else (lambda row: emit(clean_row(row))),
            )

    try:
        done = run_async(main())
    except Interrupted:
        say("Interrupted; nothing was saved")
        return INTERRUPTED
    if as_json:
        import msgspec

        emit(msgspec.json.encode({"base_url": base_url, **_as_json(done)}).decode() + "\n")
    else:
        lines = list(smoke_test.summary(done))
        emit(clean("".join(f"{line}\n" for line in (lines[:1] if is_quiet() else lines))))
    code = save_ci_files(
        lambda: describe_smoke(done, base_url), done.exit_code, folder=folder, junit=junit
    )
    if page is not None:
        save_story_page(lambda: make_smoke_page(done, base_url), page)
    if folder is not None:
        save_story_page(lambda: make_smoke_page(done, base_url), folder / PAGE_FILE)
    return code


def _as_json(done: Smoke) -> dict[str, Any]:
    return {name: getattr(done, name) for name in done.__slots__}


def clean_row(row: CheckRow) -> str:
    """Return a row of the table, followed by its request unless it is a PASS."""
    from serve_eval.cli._streams import is_terminal
    from serve_eval.report.text import clean

    outcome = f"{row.outcome:<11}"
    if is_terminal():
        outcome = typer.style(
            outcome, fg={"PASS": "green", "FAIL": "red"}.get(row.outcome, "yellow"), bold=True
        )
    told = clean(" ".join(row.told.split()))
    mark = " (tests the model)" if row.model else ""
    line = f"{outcome} {row.name:<25} {row.time_s:>7.2f} s  {told}{mark}\n"
    if row.curl is None:
        return line
    if len(row.curl) > SHOWN:
        return f"{line}    (curl line of {len(row.curl)} characters: see --json or --junit)\n"
    return f"{line}    {clean(row.curl)}\n"
