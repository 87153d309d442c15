"""Run `serve-eval watch`: repeat the smoke test and a small task, and raise alarms."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._address import ADDRESS_HELP, CONNECTION, address_of
from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command, settings_of
from serve_eval.cli._streams import emit, is_quiet, say
from serve_eval.cli._watch_options import (
    AlarmOptions,
    RoundOptions,
    WatchFolderOptions,
    WatchJudgedOptions,
    WatchProbeOptions,
    WatchPromptOptions,
)
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import names_of

if TYPE_CHECKING:
    from serve_eval.schema import Plan
    from serve_eval.workflows.watch.probes import WatchReference
    from serve_eval.workflows.watch.story import WatchJob

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
USUAL = (
    "model",
    "tasks",
    "cases",
    "dataset_root",
    "every",
    "budget_tokens",
    "tolerance",
    "verify_reference",
    "on_alarm",
    "on_alarm_command",
    "webhook",
    "forget_alarms",
    "metrics_port",
    "rounds",
    "output_dir",
    "dry_run",
)
EXAMPLES = (
    ("Show the cost, and send nothing:", "serve-eval watch host:8000 --every 10m --dry-run"),
    (
        "Send alarms to a webhook, and continue after them:",
        "serve-eval watch host:8000 --on-alarm go-on --webhook URL",
    ),
    (
        "Ask your own cases, and serve metrics for Prometheus:",
        "serve-eval watch host:8000 --cases FILE --metrics-port 9400",
    ),
    (
        "Also notice another model or precision, by a reference of serve-eval verify:",
        "serve-eval watch host:8000 --verify-reference llama.json",
    ),
    ("Start with new evidence after a repair:", "serve-eval watch host:8000 --forget-alarms"),
)


@command(usual=USUAL, examples=EXAMPLES)
def watch(
    asked: RoundOptions,
    prompts: WatchPromptOptions,
    judged: WatchJudgedOptions,
    probes: WatchProbeOptions,
    alarm: AlarmOptions,
    connection: ConnectionOptions,
    folder: WatchFolderOptions,
    faces: FaceOptions,
    url: Annotated[str | None, typer.Argument(metavar="URL", help=ADDRESS_HELP)] = None,
) -> None:
    """Watch a production endpoint and raise an alarm when it gets worse.

    With --verify-reference, also when it is another model, precision or cache than the reference.

    The probability of a false alarm is at most .01, for any duration. This assumes that the
    baseline answers are independent, and that no round as a whole is worse than the baseline by
    chance. With --set watch.round_means=true, it is enough that rounds are not worse on average.
    Evidence survives a restart: the same command resumes the watch.

    Exit codes: 0 ended on request or after --rounds, 1 an alarm, 2 usage, 4 the endpoint cannot be
    asked at the start, 130 interrupted before the endpoint was found.
    """
    plan = _plan(address_of(url, asked.model, connection), settings_of(prompts))
    job = _job(plan, prompts, asked, judged, probes, alarm)
    if folder.dry_run:
        emit("".join(f"{line}\n" for line in [*_cost(job), "nothing was sent"]))
        return
    place = folder.output_dir or _folder(job.base_url)
    code = _run(job, place, faces, metrics_port=alarm.metrics_port, forget=alarm.forget_alarms)
    raise typer.Exit(code)


def _plan(address: dict[str, Any], asked: dict[str, Any]) -> Plan:
    from serve_eval.plan.resolve import resolve, resolve_address

    if {"tasks", "cases", "requests"} & asked.keys():
        replaced = ("INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
        inherited = {name: value for name, value in os.environ.items() if name not in replaced}
        return resolve({}, {**address, **asked, "no_reference": True}, inherited).plan
    address = {**address, **{name: asked[name] for name in CONNECTION & asked.keys()}}
    if "set" in asked:
        raise PlanError(
            "--set: the generated sums and copies have no options",
            hint="Name the task of the option with --tasks.",
        )
    return resolve_address(address, os.environ)


def _job(
    plan: Plan,
    prompts: WatchPromptOptions,
    asked: RoundOptions,
    judged: WatchJudgedOptions,
    probes: WatchProbeOptions,
    alarm: AlarmOptions,
) -> WatchJob:
    """Return the job to watch. Raises PlanError for invalid options."""
    from serve_eval.workflows.watch import asking, job
    from serve_eval.workflows.watch.alarming import delivery
    from serve_eval.workflows.watch.judging import WatchRules
    from serve_eval.workflows.watch.story import LEAST_PROMPTS, WatchJob

    every = re.fullmatch(r"(0|\d+(?:\.\d+)?(?=[smh]))([smh]?)", asked.every)
    limit = job.PROMPTS if prompts.limit is None else prompts.limit
    usual = 8 if judged.reference_value is None else 2
    passes = usual if judged.passes is None else judged.passes
    problems = [] if every else [f"--every: must be a time such as 10m, not {asked.every!r}"]
    problems += [] if limit >= LEAST_PROMPTS else [f"--limit must be {LEAST_PROMPTS} or more"]
    problems += [] if passes >= 2 else ["watch.passes must be 2 or more"]
    problems += [*_wrong_numbers(asked, judged)]
    problems += (
        []
        if alarm.on_alarm in ("exit", "go-on")
        else [f"--on-alarm: must be exit or go-on, not {alarm.on_alarm!r}"]
    )
    if problems or every is None:
        raise PlanError(problems)
    reference, tokens = judged.reference_value, asked.budget_tokens
    webhook = (
        (os.environ.get("SERVE_EVAL_WEBHOOK") or None) if alarm.webhook is None else alarm.webhook
    )
    return WatchJob(
        plan=plan,
        pool=job.of_plan(plan) if plan.tasks else None,
        prompts=limit,
        rules=WatchRules(
            passes=passes,
            tolerance=judged.tolerance / 100.0,
            max_error_rate=judged.max_error_rate,
            reference=None if reference is None else reference / 100.0,
            round_means=judged.round_means,
            baseline_hours=judged.baseline_hours,
        ),
        tokens=asking.TOKENS if tokens is None else tokens,
        smoke=asked.smoke,
        every_s=float(every[1]) * _UNITS[every[2]],
        rounds=asked.rounds,
        timeout_s=asked.timeout,
        seed=asked.seed,
        ends=alarm.on_alarm == "exit",
        delivery=delivery(
            alarm.on_alarm_command, webhook, os.environ, names_of(alarm.alarm_env) or ()
        ),
        reference=_reference(probes),
    )


def _reference(asked: WatchProbeOptions) -> WatchReference | None:
    """Return the reference to compare with. Raises PlanError and ReferenceFileError."""
    from serve_eval.workflows.watch.probes import PER_ROUND, read_watch_reference

    number = asked.probes_per_round
    if asked.verify_reference is None:
        if number is not None:
            raise PlanError("watch.probes_per_round needs --verify-reference FILE")
        return None
    if number is not None and number < 1:
        raise PlanError("watch.probes_per_round must be 1 or more")
    return read_watch_reference(asked.verify_reference, PER_ROUND if number is None else number)


def _wrong_numbers(asked: RoundOptions, judged: WatchJudgedOptions) -> Iterator[str]:
    """Yield the errors in points, shares and counts."""
    if not 0.0 < judged.tolerance < 100.0:
        yield "--tolerance must be above 0 and below 100 points"
    if not 0.0 <= judged.baseline_hours < math.inf:
        yield "watch.baseline_hours must be 0 or more"
    if not 0.0 < judged.max_error_rate < 1.0:
        yield "watch.max_error_rate must be above 0 and below 1"
    if judged.reference_value is not None and not 0.0 <= judged.reference_value <= 100.0:
        yield "--reference-value must be from 0 to 100 points"
    for name, number in (("--rounds", asked.rounds), ("watch.timeout", asked.timeout)):
        if number is not None and not 0 < number < math.inf:
            yield f"{name} must be above 0"


def _cost(job: WatchJob) -> list[str]:
    """Return the cost, estimated from above."""
    from serve_eval.checks.run import choose_checks
    from serve_eval.workflows.watch import asking
    from serve_eval.workflows.watch import job as watch_job

    asked = job.pool or watch_job.generate_pool(job.prompts, chat=True)
    checks = asking.checks_of(choose_checks("quick")) if job.smoke else []
    smoke = asking.smoke_tokens(checks)
    spending = asking.budget(
        job.tokens,
        smoke=smoke,
        prompt_tokens=asked.prompt_tokens(),
        answer_tokens=asked.answer_tokens,
        probes=0 if job.reference is None else job.reference.round_tokens,
    )
    lines = list(
        asking.describe_budget(
            spending,
            every_s=job.every_s,
            prompts=len(asked.samples),
            passes=job.rules.passes,
            tolerance=job.rules.tolerance,
            learnt=job.rules.reference is None,
        )
    )
    if job.reference is not None:
        lines.append(
            asking.describe_probes(
                job.reference.per_round,
                len(job.reference.known.probes),
                spending.probes,
                every_s=job.every_s,
            )
        )
    if smoke and not spending.smoke_every:
        lines.append(
            f"the smoke test is left out, since it takes up to {smoke} tokens: give"
            f" --budget-tokens {smoke + spending.probes} or more"
        )
    return lines


def _folder(base_url: str) -> Path:
    from urllib.parse import urlsplit

    return Path("outputs") / f"watch_{re.sub(r'[^A-Za-z0-9.-]', '-', urlsplit(base_url).netloc)}"


def _run(
    job: WatchJob, folder: Path, faces: FaceOptions, *, metrics_port: int | None, forget: bool
) -> int:
    """Watch, with a line for each round, and show the result at the end. Return the exit code."""
    from contextlib import ExitStack

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.report.text import clean
    from serve_eval.verdicts.exit_code import INTERRUPTED, PASS
    from serve_eval.workflows.watch.document import read_document
    from serve_eval.workflows.watch.story import watch

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    began = False

    def ready() -> None:
        nonlocal began
        began = True

    def tell(line: str) -> None:
        if faces.as_json or is_quiet():
            say(line)
        else:
            emit(clean(f"{line}\n"))

    say(f"serve-eval watch: {job.base_url}, folder {folder}", *_cost(job))
    with ExitStack() as stack:
        metrics = None
        if metrics_port is not None:
            from serve_eval.workflows.watch.metrics import Metrics, serve

            metrics = Metrics()
            port = stack.enter_context(serve(metrics, metrics_port))
            say(f"metrics: http://127.0.0.1:{port}/metrics")
        story = watch(
            job,
            folder,
            environ=os.environ,
            metrics=metrics,
            forget=forget,
            notify=tell,
            ready=ready,
        )
        try:
            code = run_async(story)
        except Interrupted:
            say(f"The same command resumes the watch in {folder}")
            code = PASS if began else INTERRUPTED
        except ServeEvalError as error:
            if began:
                end(read_document(job, folder, error.exit_code), faces, folder=folder)
            raise
        return end(read_document(job, folder, code), faces, folder=folder) if began else code
