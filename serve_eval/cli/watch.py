"""`serve-eval watch`: the smoke test and a small task again and again, and an alarm when they turn worse."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._options import lines_of
from serve_eval.evaluation.plan.flag_values import headers_of, names_of

if TYPE_CHECKING:
    from serve_eval.schema import Plan
    from serve_eval.workflows.watch.story import Watch

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_ASKED, _JUDGED, _ALARM, _REACHED = "What is asked", "How it is judged", "What an alarm does", "How it is reached"


def watch(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="host:port, .../v1 or a full path (default OPENAI_BASE_URL, or localhost)."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name.", rich_help_panel=_ASKED)] = None,
    every: Annotated[
        str, typer.Option(help="From the start of one round to that of the next: 90s, 10m, 1h.", rich_help_panel=_ASKED)
    ] = "10m",
    budget_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens, read and generated, of a round (default 16000).", rich_help_panel=_ASKED
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", "-t", help="A task (default: sums and copies).", rich_help_panel=_ASKED),
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option("--cases", metavar="FILE", help="Your own cases (YAML).", rich_help_panel=_ASKED)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Prompts to choose from (default 200).", rich_help_panel=_ASKED)
    ] = None,
    dataset_root: Annotated[
        str | None, typer.Option("--dataset-root", help="Folder that holds the data sets.", rich_help_panel=_ASKED)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the task, gsm8k.max_tokens=256.", rich_help_panel=_ASKED),
    ] = None,
    include_path: IncludePath = None,
    smoke: Annotated[bool, typer.Option("--smoke/--no-smoke", help="Also run checks.", rich_help_panel=_ASKED)] = True,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of what is asked when (default: drawn).", rich_help_panel=_ASKED)
    ] = None,
    passes: Annotated[
        int | None,
        typer.Option(help="How often each prompt is asked for the baseline (default 8).", rich_help_panel=_JUDGED),
    ] = None,
    reference_value: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS", help="The value of these prompts, instead of a learnt one.", rich_help_panel=_JUDGED
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="POINTS", help="A fall that does not matter.", rich_help_panel=_JUDGED)
    ] = 1.0,
    round_means: Annotated[
        bool,
        typer.Option(
            "--round-means",
            help="Bet on one value per round: also holds where whole rounds are worse or better by chance. Slower.",
            rich_help_panel=_JUDGED,
        ),
    ] = False,
    max_error_rate: Annotated[
        float, typer.Option(help="Share of requests that may fail.", rich_help_panel=_JUDGED)
    ] = 0.05,
    on_alarm: Annotated[str, typer.Option(help="exit (code 1), or go-on.", rich_help_panel=_ALARM)] = "exit",
    on_alarm_command: Annotated[
        str | None,
        typer.Option(metavar="'CMD'", help="Run this with the alarm as JSON on its input.", rich_help_panel=_ALARM),
    ] = None,
    alarm_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A variable that the command gets, such as its own key. Repeatable.",
            rich_help_panel=_ALARM,
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="POST the alarm as JSON there; ${VARIABLE} filled in.", rich_help_panel=_ALARM
        ),
    ] = None,
    forget_alarms: Annotated[
        bool,
        typer.Option("--forget-alarms", help="It is mended: evidence begins anew.", rich_help_panel=_ALARM),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve figures for Prometheus at 127.0.0.1:PORT; 0: a free one.", rich_help_panel=_ALARM),
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="End after so many rounds.")] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder (default outputs/watch_<host>). A watch there goes on."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it costs; send nothing.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", rich_help_panel=_REACHED)] = 60.0,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", help="Variable of the key (default OPENAI_API_KEY).", rich_help_panel=_REACHED),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="Extra header 'Name: value', ${VARIABLE} filled in.", rich_help_panel=_REACHED),
    ] = None,
    proxy: Annotated[str | None, typer.Option("--proxy", help="HTTP proxy URL.", rich_help_panel=_REACHED)] = None,
    ca_bundle: Annotated[
        str | None, typer.Option("--ca-bundle", help="File with certificates to trust.", rich_help_panel=_REACHED)
    ] = None,
    max_tokens_field: Annotated[
        str | None,
        typer.Option("--max-tokens-field", help="max_tokens or max_completion_tokens.", rich_help_panel=_REACHED),
    ] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", hidden=True)] = None,
) -> None:
    """Watch an endpoint in production: false alarms with probability .01 at most, however long it lasts.

    That is so where no round is worse than the baseline by chance (with --round-means: where none is expected to be),
    and where the answers of the baseline are independent. Evidence survives a restart: the same command goes on.

    Exit codes: 0 ended on request or after --rounds, 1 an alarm, 2 usage, 4 the
    endpoint cannot be asked at the start, 130 interrupted before it was found.
    """
    from serve_eval.errors import PlanError

    if api_key is not None:
        raise PlanError(
            "a key on the command line is seen by every user of this machine",
            hint="Export OPENAI_API_KEY, or name another variable with --api-key-env.",
        )
    given = {
        "base_url": url,
        "model": model,
        "api_key_env": api_key_env,
        "proxy": proxy,
        "ca_bundle": ca_bundle,
        "max_tokens_field": max_tokens_field,
    }
    address: dict[str, Any] = {
        name: os.environ.get(f"SERVE_EVAL_{name.upper()}") if text is None else text for name, text in given.items()
    }
    address["headers"] = headers_of(header or lines_of("SERVE_EVAL_HEADER")) or None
    asked: dict[str, Any] = {
        "tasks": names_of(tasks),
        "cases": cases or None,
        "limit": limit,
        "dataset_root": dataset_root,
        "set": settings,
        "include_path": folders_of(include_path) or None,
    }
    job = _job(
        _plan({k: v for k, v in address.items() if v is not None}, {k: v for k, v in asked.items() if v is not None}),
        every=every,
        tokens=budget_tokens,
        prompts=limit,
        smoke=smoke,
        seed=seed,
        passes=passes,
        reference_value=reference_value,
        tolerance=tolerance,
        max_error_rate=max_error_rate,
        round_means=round_means,
        on_alarm=on_alarm,
        command=on_alarm_command,
        webhook=(os.environ.get("SERVE_EVAL_WEBHOOK") or None) if webhook is None else webhook,
        alarm_env=names_of(alarm_env) or (),
        rounds=rounds,
        timeout=timeout,
    )
    if dry_run:
        from serve_eval.cli._streams import emit

        emit("".join(f"{line}\n" for line in [*_cost(job), "nothing was sent"]))
        return
    folder = output_dir or _folder(job.base_url)
    raise typer.Exit(_run(job, folder, metrics_port=metrics_port, forget=forget_alarms))


def _plan(address: dict[str, Any], asked: dict[str, Any]) -> Plan:
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.plan.resolve import resolve, resolve_address

    if "tasks" in asked or "cases" in asked:
        replaced = ("INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
        inherited = {name: value for name, value in os.environ.items() if name not in replaced}
        return resolve({}, {**address, **asked, "no_reference": True}, inherited).plan
    if "set" in asked:
        raise PlanError("--set: sums and copies have no options", hint="Name the task of the option with --tasks.")
    return resolve_address(address, os.environ)


def _job(plan: Plan, *, every: str, tokens: int | None, prompts: int | None, **more: Any) -> Watch:
    """What is watched, of the flags. Raises PlanError for what cannot be."""
    from serve_eval.errors import PlanError
    from serve_eval.workflows.watch import budget, pool
    from serve_eval.workflows.watch.alarming import delivery
    from serve_eval.workflows.watch.judging import Rules
    from serve_eval.workflows.watch.story import LEAST_PROMPTS, Watch

    problems = []
    length = re.fullmatch(r"(0|\d+(?:\.\d+)?(?=[smh]))([smh]?)", every)
    if length is None:
        problems.append(f"--every: expected a time such as 10m, not {every!r}")
    prompts = pool.PROMPTS if prompts is None else prompts
    if prompts < LEAST_PROMPTS:
        problems.append(f"--limit: at least {LEAST_PROMPTS} prompts")
    usual = 8 if more["reference_value"] is None else 2
    passes = usual if more["passes"] is None else more["passes"]
    if passes < 2:
        problems.append("--passes must be 2 or more")
    if not 0.0 < more["tolerance"] < 100.0:
        problems.append("--tolerance: points above 0 and below 100")
    if not 0.0 < more["max_error_rate"] < 1.0:
        problems.append("--max-error-rate: a share between 0 and 1")
    reference = more["reference_value"]
    if reference is not None and not 0.0 <= reference <= 100.0:
        problems.append("--reference-value: points from 0 to 100")
    for name in ("rounds", "timeout"):
        if more[name] is not None and not 0 < more[name] < math.inf:
            problems.append(f"--{name} must be above 0")
    if more["on_alarm"] not in ("exit", "go-on"):
        problems.append(f"--on-alarm: exit or go-on, not {more['on_alarm']!r}")
    if problems:
        raise PlanError(problems)
    assert length is not None
    return Watch(
        plan=plan,
        pool=pool.of_plan(plan) if plan.tasks else None,
        prompts=prompts,
        rules=Rules(
            passes=passes,
            tolerance=more["tolerance"] / 100.0,
            max_error_rate=more["max_error_rate"],
            reference=None if reference is None else reference / 100.0,
            round_means=more["round_means"],
        ),
        tokens=budget.TOKENS if tokens is None else tokens,
        smoke=more["smoke"],
        every_s=float(length[1]) * _UNITS[length[2]],
        rounds=more["rounds"],
        timeout_s=more["timeout"],
        seed=more["seed"],
        ends=more["on_alarm"] == "exit",
        delivery=delivery(more["command"], more["webhook"], os.environ, more["alarm_env"]),
    )


def _cost(job: Watch) -> list[str]:
    """What it takes, by estimates from above."""
    from serve_eval.checks.run import chosen
    from serve_eval.workflows.watch import budget, pool

    asked = job.pool or pool.generated(job.prompts, chat=True)
    checks = budget.checks_of(chosen("quick")) if job.smoke else []
    smoke = budget.smoke_tokens(checks)
    spending = budget.budget(
        job.tokens, smoke=smoke, prompt_tokens=asked.prompt_tokens(), answer_tokens=asked.answer_tokens
    )
    lines = list(budget.told(spending, every_s=job.every_s, prompts=len(asked.samples), passes=job.rules.passes))
    if smoke and not spending.smoke_every:
        lines.append(f"the smoke test takes up to {smoke} tokens and is left out: --budget-tokens {smoke} or more")
    return lines


def _folder(base_url: str) -> Path:
    from urllib.parse import urlsplit

    return Path("outputs") / f"watch_{re.sub(r'[^A-Za-z0-9.-]', '-', urlsplit(base_url).netloc)}"


def _run(job: Watch, folder: Path, *, metrics_port: int | None, forget: bool) -> int:
    from contextlib import ExitStack

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import emit, say
    from serve_eval.report.text import clean
    from serve_eval.verdicts.exit_code import INTERRUPTED, PASS
    from serve_eval.workflows.watch.story import watch as watch_it

    began = False

    def ready() -> None:
        nonlocal began
        began = True

    say(f"serve-eval watch: {job.base_url}, folder {folder}", *_cost(job))
    with ExitStack() as stack:
        metrics = None
        if metrics_port is not None:
            from serve_eval.workflows.watch.metrics import Metrics, served

            metrics = Metrics()
            port = stack.enter_context(served(metrics, metrics_port))
            say(f"metrics: http://127.0.0.1:{port}/metrics")
        try:
            return run_async(
                watch_it(
                    job,
                    folder,
                    environ=os.environ,
                    metrics=metrics,
                    forget=forget,
                    told=lambda line: emit(clean(f"{line}\n")),
                    ready=ready,
                )
            )
        except Interrupted:
            say(f"The same command goes on with what is in {folder}")
            return PASS if began else INTERRUPTED
