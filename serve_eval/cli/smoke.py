"""Run `serve-eval smoke`: check in seconds what an endpoint supports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serve_eval.cli._address import ADDRESS_HELP, SetOptions, address_of
from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._smoke_options import CheckOptions, SmokeResultOptions
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import names_of

if TYPE_CHECKING:
    from serve_eval.checks.row import CheckRow
    from serve_eval.checks.session import Check
    from serve_eval.schema import Plan
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
    from contextlib import ExitStack

    from serve_eval.checks.run import choose_checks
    from serve_eval.evidence.prompt_audit.local_tokens import open_local
    from serve_eval.plan.resolve import resolve_address
    from serve_eval.workflows.smoke import smoke as smoke_test
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
    from serve_eval.errors import PlanError

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
    from serve_eval.errors import PlanError

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
    asked: CheckOptions,
    known: KnownFailures | None,
    result: SmokeResultOptions,
    faces: FaceOptions,
) -> int:
    from datetime import UTC, datetime

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ending import end
    from serve_eval.cli._page import save_story_page
    from serve_eval.cli._smoke_result import encode_result, explain_death, save_known, save_result
    from serve_eval.cli._streams import say
    from serve_eval.report.document import make_page
    from serve_eval.verdicts.exit_code import INTERRUPTED, worst
    from serve_eval.workflows.smoke import smoke as smoke_test
    from serve_eval.workflows.smoke.document import make_document
    from serve_eval.workflows.smoke.smoke import smoke_endpoint

    base_url, started_at = str(plan.launcher.options["base_url"]), datetime.now(UTC).isoformat()
    say(f"serve-eval smoke: {base_url}", smoke_test.cost(checks))
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
    from serve_eval.cli._streams import LongSteps, is_quiet

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
