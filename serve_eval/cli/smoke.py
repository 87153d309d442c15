"""`serve-eval smoke`: what an endpoint does with each kind of request, in seconds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._options import lines_of
from serve_eval.evaluation.plan.flag_values import headers_of, names_of

if TYPE_CHECKING:
    from serve_eval.checks.check import Check
    from serve_eval.checks.row import Row
    from serve_eval.schema import Plan
    from serve_eval.workflows.smoke.smoke import Smoke

SHOWN = 2000
"""Characters of a curl line that the table shows; --json and --junit have all of it."""


def smoke(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="host:port, .../v1 or a full path (default OPENAI_BASE_URL, or localhost)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model name."),
    ] = None,
    level: Annotated[
        str, typer.Option(help="quick, or full: with what has ended early versions of servers.")
    ] = "quick",
    require: Annotated[
        list[str] | None, typer.Option(help="Checks for which UNSUPPORTED is FAIL: chat,json_schema,... Repeatable.")
    ] = None,
    passkey: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Also hide a key in a prompt of so many tokens.")
    ] = None,
    context_tokens: Annotated[
        int | None, typer.Option(help="Length of the context, where the endpoint does not tell it.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 60.0,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Variable that holds the key (default OPENAI_API_KEY).")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="Extra header 'Name: value', ${VARIABLE} filled in. Repeatable."),
    ] = None,
    proxy: Annotated[str | None, typer.Option("--proxy", help="HTTP proxy URL.")] = None,
    ca_bundle: Annotated[str | None, typer.Option("--ca-bundle", help="File with certificates to trust.")] = None,
    max_tokens_field: Annotated[
        str | None, typer.Option("--max-tokens-field", help="max_tokens (default) or max_completion_tokens, for chat.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as a JUnit file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the checks and their cost; send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON object.")] = False,
    api_key: Annotated[str | None, typer.Option("--api-key", hidden=True)] = None,
) -> None:
    """Check an endpoint after its deployment: a table of PASS, FAIL and UNSUPPORTED. No data set is needed.

    Exit codes: 0 nothing failed, 1 a check failed, 2 usage, 4 the endpoint cannot be reached or asked, 130 interrupted.
    """
    from serve_eval.checks.run import chosen
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.plan.resolve import resolve_address
    from serve_eval.workflows.smoke import smoke as smoke_test

    if api_key is not None:
        raise PlanError(
            "a key on the command line is seen by every user of this machine",
            hint="Export OPENAI_API_KEY, or name another variable with --api-key-env.",
        )
    if level not in ("quick", "full"):
        raise PlanError(f"--level: quick or full, not {level!r}")
    for name, number in (("passkey", passkey), ("context-tokens", context_tokens), ("timeout", timeout)):
        if number is not None and number <= 0:
            raise PlanError(f"--{name} must be above 0")
    given = {
        "base_url": url,
        "model": model,
        "api_key_env": api_key_env,
        "proxy": proxy,
        "ca_bundle": ca_bundle,
        "max_tokens_field": max_tokens_field,
    }
    settings: dict[str, Any] = {
        name: os.environ.get(f"SERVE_EVAL_{name.upper()}") if text is None else text for name, text in given.items()
    }
    settings["headers"] = headers_of(header or lines_of("SERVE_EVAL_HEADER")) or None
    plan = resolve_address({name: value for name, value in settings.items() if value is not None}, os.environ)
    checks = chosen("full" if level == "full" else "quick", passkey_tokens=passkey, context_tokens=context_tokens)
    needed = smoke_test.required(names_of(require) or [], checks)
    if dry_run:
        _preview(checks, as_json=as_json)
        return
    if junit is not None and not junit.absolute().parent.is_dir():
        raise PlanError(f"--junit: {junit.parent} is not a folder")
    raise typer.Exit(
        _run(plan, checks, needed, timeout_s=timeout, context_tokens=context_tokens, junit=junit, as_json=as_json)
    )


def _preview(checks: list[Check], *, as_json: bool) -> None:
    import json

    from serve_eval.cli._streams import emit
    from serve_eval.workflows.smoke.smoke import cost

    if as_json:
        shown = [
            {name: getattr(one, name) for name in ("name", "requests", "tokens", "prompt_tokens", "model")}
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
    junit: Path | None,
    as_json: bool,
) -> int:
    from dataclasses import replace
    from functools import partial

    from serve_eval.checks.curl import curl
    from serve_eval.checks.session import Session
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import emit, path_of, say
    from serve_eval.client.connection import connect, openai_client
    from serve_eval.report.text import clean
    from serve_eval.schema import Endpoint
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, INTERRUPTED, worst
    from serve_eval.workflows.smoke import smoke as smoke_test
    from serve_eval.workflows.smoke.junit import junit as to_junit

    base_url = str(plan.launcher.options["base_url"])
    plan = replace(plan, limits=replace(plan.limits, connect_timeout_s=min(plan.limits.connect_timeout_s, timeout_s)))
    filled = {name for name, value in os.environ.items() if value.strip()}
    say(f"serve-eval smoke: {base_url}", smoke_test.cost(checks))

    async def main() -> Smoke:
        async with connect(plan, Endpoint(base_url=base_url, model=plan.model), os.environ) as client:
            package = partial(openai_client, plan, environ=os.environ, timeout_s=timeout_s)
            session = Session(
                client, model=plan.model, openai=package, timeout_s=timeout_s, context_tokens=context_tokens
            )
            return await smoke_test.smoke(
                session,
                checks,
                needed=needed,
                curl=partial(curl, connection=plan.connection, variables=filled),
                told=(lambda row: None) if as_json else (lambda row: emit(clean_row(row))),
            )

    try:
        done = run_async(main())
    except Interrupted:
        say("Interrupted; nothing is kept")
        return INTERRUPTED
    if as_json:
        import msgspec

        emit(msgspec.json.encode({"base_url": base_url, **_as_json(done)}).decode() + "\n")
    else:
        emit(clean("".join(f"{line}\n" for line in smoke_test.summary(done))))
    if junit is not None:
        try:
            path_of(junit).write_text(to_junit(done, base_url), encoding="utf-8")
        except OSError as error:
            say(f"error: --junit: {junit} cannot be written: {error.strerror}")
            return worst([done.exit_code, INFRASTRUCTURE])
    return done.exit_code


def _as_json(done: Smoke) -> dict[str, Any]:
    return {name: getattr(done, name) for name in done.__slots__}


def clean_row(row: Row) -> str:
    """A row of the table, and below it the request that shows why it is no PASS."""
    from serve_eval.cli._streams import is_terminal
    from serve_eval.report.text import clean

    outcome = f"{row.outcome:<11}"
    if is_terminal():
        outcome = typer.style(outcome, fg={"PASS": "green", "FAIL": "red"}.get(row.outcome, "yellow"), bold=True)
    told = clean(" ".join(row.told.split()))
    mark = " (the model is tested)" if row.model else ""
    line = f"{outcome} {row.name:<25} {row.time_s:>7.2f} s  {told}{mark}\n"
    if row.curl is None:
        return line
    if len(row.curl) > SHOWN:
        return f"{line}    (a curl line of {len(row.curl)} characters: see --json or --junit)\n"
    return f"{line}    {clean(row.curl)}\n"
