"""Run `serve-eval smoke`: check in seconds what an endpoint supports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._address import ADDRESS_HELP, SetOptions, address_of
from serve_eval.cli._common_options import FaceOptions, RequestTimeout
from serve_eval.cli._options import command
from serve_eval.cli._streams import LongSteps, emit, is_quiet, path_of, say
from serve_eval.errors import EndpointError, PlanError
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import names_of
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.checks.row import CheckRow
    from serve_eval.checks.session import Check
    from serve_eval.schema import Plan
    from serve_eval.workflows.smoke import Smoke
    from serve_eval.workflows.smoke.known import KnownFailures


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
    (
        "Accept what fails today:",
        "serve-eval smoke host:8000 --write-known known.json",
    ),
    (
        "Fail only on what is new since then, every night:",
        "serve-eval smoke host:8000 --known known.json",
    ),
)


@freeze
class CheckOptions:
    """Choose the checks."""

    title: ClassVar[str] = "Checks"
    command: ClassVar[str] = "smoke"
    model: shared_options.Model = None
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
    known: Annotated[
        Path | None,
        Setting(
            "File of known failures: a check that fails as before is KNOWN, not FAIL.",
            metavar="FILE",
        ),
    ] = None
    passkey: Annotated[
        int | None,
        Setting(
            "Also hide a key in a prompt of this length, and ask for it.",
            metavar="TOKENS",
            flag=False,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Setting(
            "Also compare the tokens of prompts with the tokenizer and template of this folder.",
            metavar="DIR",
            flag=False,
        ),
    ] = None
    context_tokens: Annotated[
        int | None,
        Setting(
            "Context length, if the endpoint does not report it.",
            metavar="N",
            flag=False,
        ),
    ] = None
    timeout: RequestTimeout = 60.0


@freeze
class SmokeResultOptions:
    """Choose the folder and other files."""

    title: ClassVar[str] = "Output"
    command: ClassVar[str] = "smoke"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder for junit.xml, summary.md and report.html (default: none is written).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    page: Annotated[
        Path | None,
        Setting(
            "Write the table as a page.",
            metavar="FILE",
            flag=False,
        ),
    ] = None
    write_known: Annotated[
        Path | None,
        Setting(
            "Write what fails now as a file for --known. The exit code stays: 1 if a check fails.",
            metavar="FILE",
        ),
    ] = None
    dry_run: Annotated[bool, Setting("Show the checks and their cost; send nothing.")] = False


@command(examples=EXAMPLES)
def smoke(
    asked: CheckOptions,
    connection: ConnectionOptions,
    more: SetOptions,
    result: SmokeResultOptions,
    faces: FaceOptions,
    url: Annotated[str | None, typer.Argument(metavar="URL", help=ADDRESS_HELP)] = None,
) -> None:
    """Check what a deployed endpoint supports: PASS, FAIL or UNSUPPORTED for each feature.

    No data set is needed.

    Exit codes: 0 nothing failed, 1 a check failed, 2 usage, 4 the endpoint cannot be reached,
    refuses requests or died, 130 interrupted.
    """

    from serve_eval.checks.run import choose_checks
    from serve_eval.evidence.prompt_tokens import open_local
    from serve_eval.plan.resolve import resolve_address
    from serve_eval.workflows import smoke as smoke_test
    from serve_eval.workflows.smoke.known import KnownFailures, read_known

    _check(asked)
    known = None
    if asked.known is not None:
        known = KnownFailures(file=str(asked.known), checks=read_known(asked.known))
    plan = resolve_address(address_of(url, asked.model, connection, more), os.environ)
    with ExitStack() as stack:
        local = None if asked.tokenizer is None else open_local(asked.tokenizer)
        if local is not None:
            stack.enter_context(local)
        checks = choose_checks(
            "full" if asked.level == "full" else "quick",
            passkey_tokens=asked.passkey,
            context_tokens=asked.context_tokens,
            local=local,
            items=plan.connection.route != "chat" or "responses" in (names_of(asked.require) or ()),
        )
        needed = smoke_test.check_required(names_of(asked.require) or [], checks)
        if result.dry_run:
            _preview(checks, as_json=faces.as_json)
            return
        _check_places(result, faces)
        code = _run(plan, checks, needed, asked, known, result, faces)
    raise typer.Exit(code)


def _check(asked: CheckOptions) -> None:
    """Raise PlanError for an unknown level, and for numbers that are not above 0."""

    if asked.level not in ("quick", "full"):
        raise PlanError(f"--level: must be quick or full, not {asked.level!r}")
    numbers = (
        ("passkey", asked.passkey),
        ("context_tokens", asked.context_tokens),
        ("timeout", asked.timeout),
    )
    for name, number in numbers:
        if number is not None and number <= 0:
            raise PlanError(f"smoke.{name} must be above 0")


def _check_places(result: SmokeResultOptions, faces: FaceOptions) -> None:
    """Make the folder of the results, and raise PlanError if a file could not be written."""
    from serve_eval.cli._ci_files import check_asked

    files = (
        ("smoke.page", result.page),
        ("--write-known", result.write_known),
    )
    for flag, file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise PlanError(f"{flag}: {file.absolute().parent} is not a folder")
        if file is not None and file.is_dir():
            raise PlanError(f"{flag}: {file} is a folder")
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if result.output_dir is not None:
        _make_folder(result.output_dir)


def _make_folder(folder: Path) -> None:
    """Create the folder of the results. Raises PlanError."""

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"-o: {folder} cannot be used: {error.strerror}") from error


def _preview(checks: list[Check], *, as_json: bool) -> None:
    import json

    from serve_eval.workflows.smoke import cost

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
    asked: CheckOptions,
    known: KnownFailures | None,
    result: SmokeResultOptions,
    faces: FaceOptions,
) -> int:
    from datetime import UTC, datetime

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ending import end, save_story_page
    from serve_eval.report.document import make_page
    from serve_eval.verdicts.exit_code import INTERRUPTED, worst
    from serve_eval.workflows import smoke
    from serve_eval.workflows.smoke import make_document, smoke_endpoint

    base_url, started_at = str(plan.launcher.options["base_url"]), datetime.now(UTC).isoformat()
    say(f"serve-eval smoke: {base_url}", smoke.cost(checks))
    try:
        with _show_progress(len(checks)) as notify:
            done = run_async(
                smoke_endpoint(
                    plan,
                    checks,
                    needed=needed,
                    timeout_s=asked.timeout,
                    context_tokens=asked.context_tokens,
                    known=known,
                    notify=notify,
                )
            )
    except Interrupted:
        say("Interrupted; nothing was saved")
        return INTERRUPTED
    done = explain_death(done, base_url)
    figures = encode_result(done, base_url, started_at)
    folder = result.output_dir
    if folder is not None:
        save_result(figures, folder)
    document = make_document(done, base_url, started_at=started_at, folder=folder)
    code = end(document, faces, folder=folder, figures=figures)
    if result.page is not None:
        save_story_page(lambda: make_page(document), result.page)
    return worst([code, save_known(done, result.write_known)])


@contextmanager
def _show_progress(checks: int) -> Iterator[Callable[[CheckRow], None]]:
    """Show on a terminal how many checks have run, in a line that is gone at their end."""

    rows: list[CheckRow] = []
    shown = LongSteps()
    drawn = sys.stderr.isatty() and not is_quiet()

    def notify(row: CheckRow) -> None:
        rows.append(row)
        failed = sum(one.outcome == "FAIL" for one in rows)
        if drawn:
            shown(f"{len(rows)} of {checks} checks, {failed} failed: {row.name}", False)

    try:
        yield notify
    finally:
        if drawn:
            shown("", True)


def explain_death(done: Smoke, base_url: str) -> Smoke:
    """Return the result with how the server ended, if it died and `serve-eval serve` held it."""
    from urllib.parse import urlsplit

    from serve_eval.workflows.servers.reuse import explain_lost

    if not done.died:
        return done
    place = urlsplit(base_url).netloc
    told = explain_lost(EndpointError(f"no server listens at {place} any more"))
    return replace(done, stopped=f"{done.stopped}: {told}")


def encode_result(done: Smoke, base_url: str, started_at: str) -> bytes:
    """Return all figures as JSON, in the form that `serve-eval runs view` reads in a folder."""
    from serve_eval.storage.json_files import pretty_json

    found = {
        "started_at": started_at,
        "base_url": base_url,
        "model": "" if done.deployment is None else done.deployment.model,
        **{one.name: getattr(done, one.name) for one in fields(done)},
        "counts": done.counts,
    }
    return pretty_json(found)


def save_result(figures: bytes, folder: Path) -> None:
    """Write all figures into the folder; if that fails, warn and go on to tell the result."""
    from serve_eval.storage.json_files import write_private
    from serve_eval.storage.story_files import SMOKE

    try:
        write_private(folder / SMOKE.result, figures)
    except OSError as error:
        say(f"warning: {folder / SMOKE.result} could not be written: {error.strerror}")


def save_known(done: Smoke, file: Path | None) -> int:
    """Write the file of known failures, if one is wanted. Return the exit code."""
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, worst
    from serve_eval.workflows.smoke.known import write_known

    if file is None:
        return done.exit_code
    if done.stopped or done.deployment is None:
        say(f"error: --write-known: {file} was not written, because not all checks ran")
        return worst([done.exit_code, INFRASTRUCTURE])
    try:
        here = done.deployment
        write_known(path_of(file), list(done.rows), model=here.model, server=here.server)
    except OSError as error:
        say(f"error: --write-known: {file} cannot be written: {error.strerror}")
        return worst([done.exit_code, INFRASTRUCTURE])
    say(f"known failures: {file}; next time: --known {file}")
    return done.exit_code
