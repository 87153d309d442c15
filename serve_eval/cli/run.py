"""`serve-eval run`: evaluate an endpoint and judge it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._include import HELP, TRUST_HELP, folders_of, permissions

if TYPE_CHECKING:
    from serve_eval.evaluation.endpoint.launch import Launching
    from serve_eval.evaluation.plan.resolve import Resolved
    from serve_eval.evaluation.rerun import Rerun
    from serve_eval.schema import Plan

_FREE = "What is asked"
_PROTOCOL = "By which protocol, for every task"
_JUDGED = "How it is judged"
_REACHED = "How the endpoint is reached"
_SENT = "How the requests are sent"
_SAID = "What is written"


def _flag(name: str, text: str, panel: str, **more: Any) -> Any:
    """An option with its SERVE_EVAL_* variable."""
    variable = "SERVE_EVAL_" + name.partition("/")[0].removeprefix("--").upper().replace("-", "_")
    return typer.Option(
        name, *more.pop("short", ()), help=text, envvar=variable, show_envvar=False, rich_help_panel=panel, **more
    )


def _repeated(name: str, text: str, panel: str, *, short: tuple[str, ...] = ()) -> Any:
    """An option that may be given several times; its variable holds one value per line (see `_lines`)."""
    return typer.Option(name, *short, help=f"{text} Repeatable.", rich_help_panel=panel)


def run(
    ctx: typer.Context,
    plan: Annotated[Path | None, typer.Argument(help="A plan file (YAML) with the same content as the flags.")] = None,
    base_url: Annotated[
        str | None,
        _flag(
            "--base-url",
            "host:port, .../v1 or a full path (default OPENAI_BASE_URL, else localhost:8000).",
            _REACHED,
        ),
    ] = None,
    launcher: Annotated[
        str | None, _flag("--launcher", "Start the endpoint: see serve-eval list launchers.", _REACHED)
    ] = None,
    keep_servers: Annotated[
        bool, _flag("--keep-servers", "Leave the launcher's servers up after the run.", _REACHED)
    ] = False,
    reuse: Annotated[bool, _flag("--reuse", "Use the same servers where they are held already.", _REACHED)] = False,
    model: Annotated[
        str | None,
        _flag("--model", "Model name. May be left out when the endpoint lists exactly one.", _FREE, short=("-m",)),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        _repeated("--tasks", "Tasks, separated by commas: mmlu,gsm8k.", _FREE, short=("-t",)),
    ] = None,
    cases: Annotated[
        list[str] | None, _repeated("--cases", "A file or folder of your own cases (YAML), a task each.", _FREE)
    ] = None,
    dataset_root: Annotated[
        str | None, _flag("--dataset-root", "Folder that holds the data sets. LLM_MODELS_ROOT is searched too.", _FREE)
    ] = None,
    allow_hub: Annotated[
        bool | None, _flag("--allow-hub", "Download data sets that are not found locally.", _FREE)
    ] = None,
    allow_code_execution: Annotated[
        bool | None,
        _flag("--allow-code-execution", "Run code that the model writes, shut off (humaneval).", _FREE),
    ] = None,
    include_path: Annotated[
        list[str] | None,
        typer.Option("--include-path", metavar="DIR", help=HELP, rich_help_panel=_FREE),
    ] = None,
    trust_plan: Annotated[bool, typer.Option("--trust-plan", help=TRUST_HELP, rich_help_panel=_FREE)] = False,
    limit: Annotated[int | None, _flag("--limit", "A seeded random subset of N samples per task.", _FREE)] = None,
    repeats: Annotated[
        int | None,
        _flag(
            "--repeats",
            "Ask every sample so many times (default 1, or as its case file says): averaged, stability told.",
            _FREE,
            short=("--iterations",),
        ),
    ] = None,
    seed: Annotated[int | None, _flag("--seed", "Seed of the subset (default 0).", _FREE)] = None,
    settings: Annotated[
        list[str] | None,
        _repeated(
            "--set",
            "An option of a task, gsm8k.num_fewshot=3, or launcher.OPTION=VALUE, verdict.OPTION=VALUE.",
            _FREE,
        ),
    ] = None,
    apply_chat_template: Annotated[
        bool | None,
        _flag("--apply-chat-template/--no-apply-chat-template", "Ask by chat, or by plain text.", _PROTOCOL),
    ] = None,
    tokenizer: Annotated[
        str | None,
        _flag(
            "--tokenizer",
            "Folder with the chat template, to render it here; for likelihoods, with the first token.",
            _PROTOCOL,
        ),
    ] = None,
    system_prompt: Annotated[
        str | None, _flag("--system-prompt", "A system turn; without chat, a text before each prompt.", _PROTOCOL)
    ] = None,
    num_fewshot: Annotated[int | None, _flag("--num-fewshot", "Worked examples in each prompt.", _PROTOCOL)] = None,
    fewshot_as_multiturn: Annotated[
        bool | None,
        _flag("--fewshot-as-multiturn/--no-fewshot-as-multiturn", "Each example as two turns of the chat.", _PROTOCOL),
    ] = None,
    thinking: Annotated[
        str | None, _flag("--thinking", "on or off: enable_thinking in chat_template_kwargs.", _PROTOCOL)
    ] = None,
    max_tokens: Annotated[int | None, _flag("--max-tokens", "Most tokens of an answer.", _PROTOCOL)] = None,
    temperature: Annotated[float | None, _flag("--temperature", "0 is greedy, as most tasks ask.", _PROTOCOL)] = None,
    top_p: Annotated[float | None, _flag("--top-p", "Share of the probability to sample from.", _PROTOCOL)] = None,
    sampling_seed: Annotated[
        int | None, _flag("--sampling-seed", "The request's seed; --seed is that of the subset.", _PROTOCOL)
    ] = None,
    extra_body: Annotated[
        str | None, _flag("--extra-body", "Further fields of every request, as a JSON object.", _PROTOCOL)
    ] = None,
    suite_exact: Annotated[
        bool | None,
        _flag("--suite-exact/--no-suite-exact", "Follow the original suite in its accidents too.", _PROTOCOL),
    ] = None,
    reference_model: Annotated[
        str | None, _flag("--reference-model", "Look references up under this name instead of --model.", _JUDGED)
    ] = None,
    dtype: Annotated[str | None, _flag("--dtype", "Specification that the reference is matched on.", _JUDGED)] = None,
    quant_algo: Annotated[str | None, _flag("--quant-algo", "As above, for example FP8.", _JUDGED)] = None,
    kv_cache_quant_algo: Annotated[str | None, _flag("--kv-cache-quant-algo", "As above.", _JUDGED)] = None,
    spec_dec_algo: Annotated[str | None, _flag("--spec-dec-algo", "As above, for example MTP.", _JUDGED)] = None,
    extra_acc_spec: Annotated[str | None, _flag("--extra-acc-spec", "As above.", _JUDGED)] = None,
    references_dir: Annotated[
        str | None, _flag("--references-dir", "Folder of your own references, searched first.", _JUDGED)
    ] = None,
    no_reference: Annotated[
        bool | None,
        _flag("--no-reference", "Use no reference: print the values without a verdict (exit code 3).", _JUDGED),
    ] = None,
    allow_missing_reference: Annotated[
        bool | None,
        _flag("--allow-missing-reference", "Judge where a reference applies, else print the value.", _JUDGED),
    ] = None,
    allow_mismatch: Annotated[
        list[str] | None, _repeated("--allow-mismatch", "Compare although this protocol field differs.", _JUDGED)
    ] = None,
    verdict: Annotated[
        str | None, _flag("--verdict", "Verdict rule: classic (default), paired, noninferiority, anchors.", _JUDGED)
    ] = None,
    margin: Annotated[
        float | None, _flag("--margin", "Drop in points that matters, for the rules that compare pairs.", _JUDGED)
    ] = None,
    early_stop: Annotated[
        bool | None,
        _flag("--early-stop/--no-early-stop", "Stop when the verdict is as good as certain.", _JUDGED),
    ] = None,
    early_stop_eps: Annotated[
        float | None,
        _flag(
            "--early-stop-eps",
            "Early stop with this probability of another verdict (default .01); under a rule that compares pairs, of "
            "too many missing answers: its error is its alpha.",
            _JUDGED,
        ),
    ] = None,
    strict: Annotated[bool, _flag("--strict", "Exit with 1 instead of 3.", _JUDGED)] = False,
    api_key_env: Annotated[
        str | None, _flag("--api-key-env", "Variable with the key (default OPENAI_API_KEY); '' sends none.", _REACHED)
    ] = None,
    header: Annotated[
        list[str] | None, _repeated("--header", "Extra header 'Name: value'; ${VARIABLE} is filled in.", _REACHED)
    ] = None,
    proxy: Annotated[str | None, _flag("--proxy", "HTTP proxy URL.", _REACHED)] = None,
    ca_bundle: Annotated[str | None, _flag("--ca-bundle", "File with certificates to trust.", _REACHED)] = None,
    max_tokens_field: Annotated[
        str | None,
        _flag("--max-tokens-field", "max_tokens (default) or max_completion_tokens, for chat.", _REACHED),
    ] = None,
    concurrency: Annotated[
        str | None,
        _flag("--concurrency", "Requests in flight (default 64), or auto: as many as the endpoint carries.", _SENT),
    ] = None,
    rate_limit: Annotated[
        float | None, _flag("--rate-limit", "At most so many requests per second, evenly spaced.", _SENT)
    ] = None,
    order: Annotated[
        str | None, _flag("--order", "Which samples first: random (default), natural, prefix, longest.", _SENT)
    ] = None,
    order_seed: Annotated[
        int | None, _flag("--order-seed", "Seed of the random order (default: drawn for each new run).", _SENT)
    ] = None,
    stream: Annotated[
        bool | None,
        _flag("--stream/--no-stream", "Ask for streams: adds times to the first token and per token.", _SENT),
    ] = None,
    max_attempts: Annotated[int | None, _flag("--max-attempts", "Attempts per sample (default 4).", _SENT)] = None,
    retry_budget: Annotated[
        int | None,
        _flag("--retry-budget", "Retries of all samples of a session (default: a quarter of the samples).", _SENT),
    ] = None,
    max_error_rate: Annotated[
        float | None,
        _flag("--max-error-rate", "Stop when a larger share of 50 or more samples failed (default .10).", _SENT),
    ] = None,
    connect_timeout: Annotated[
        float | None, _flag("--connect-timeout", "Seconds to connect, per attempt (default 60).", _SENT)
    ] = None,
    stall_timeout: Annotated[
        float | None, _flag("--stall-timeout", "Seconds without data, per attempt (default 900).", _SENT)
    ] = None,
    sample_timeout: Annotated[
        float | None, _flag("--sample-timeout", "Seconds for a sample with all attempts (default 3600).", _SENT)
    ] = None,
    outage_timeout: Annotated[
        float | None,
        _flag(
            "--outage-timeout",
            "Seconds for which requests wait while no server listens, or it is starting (default 60; 0: the run ends).",
            _SENT,
        ),
    ] = None,
    max_response_bytes: Annotated[
        int | None, _flag("--max-response-bytes", "Bytes read of an answer (default 16777216).", _SENT)
    ] = None,
    scorer_timeout: Annotated[
        float | None, _flag("--scorer-timeout", "Seconds that a scorer may take for one answer (default 10).", _SENT)
    ] = None,
    output_dir: Annotated[
        str | None,
        _flag(
            "--output-dir",
            "Run folder (default outputs/<time>_<model>). A run that is there goes on.",
            _SAID,
            short=("-o",),
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        _flag("--resume", "Go on with the run in this folder, with its own plan; variables are not considered.", _SAID),
    ] = None,
    rerun: Annotated[
        str, _flag("--rerun", "What to ask again: never, failed (default), changed, version, all.", _SAID)
    ] = "failed",
    run_all: Annotated[bool, _flag("--run-all", "The same as --rerun all; old answers are archived.", _SAID)] = False,
    dry_run: Annotated[
        bool,
        _flag("--dry-run", "Show plan, requests, thresholds and first prompts; send nothing.", _SAID),
    ] = False,
    dump_prompts: Annotated[
        Path | None, _flag("--dump-prompts", "Write every prompt as JSON lines to this file; send nothing.", _SAID)
    ] = None,
    as_json: Annotated[bool, _flag("--json", "Print the report as one JSON object.", _SAID)] = False,
    api_key: Annotated[str | None, typer.Option("--api-key", hidden=True)] = None,
) -> None:
    """Evaluate an endpoint, compare it with its references, say PASS, FAIL or INCONCLUSIVE.

    Every flag has a variable SERVE_EVAL_<FLAG>; flags beat environment beats plan
    file.

    Exit codes: 0 pass, 1 fail, 2 usage, 3 undecided or no reference, 4 endpoint
    or infrastructure, 5 nothing scored, 130 interrupted.
    """
    from dataclasses import replace

    from serve_eval.errors import PlanError

    if api_key is not None:
        raise PlanError(
            "a key on the command line is seen by every user of this machine",
            hint="Export OPENAI_API_KEY, or name another variable with --api-key-env.",
        )
    given = {
        "base_url": base_url,
        "launcher": launcher,
        "model": model,
        "tasks": names_of(_lines(tasks, "SERVE_EVAL_TASKS")),
        "cases": _lines(cases, "SERVE_EVAL_CASES"),
        "dataset_root": dataset_root,
        "allow_hub": allow_hub,
        "allow_code_execution": allow_code_execution,
        "include_path": folders_of(include_path) or None,
        "limit": limit,
        "repeats": repeats,
        "seed": seed,
        "set": _with_margin(_lines(settings, "SERVE_EVAL_SET"), margin),
        "reference_model": reference_model,
        "dtype": dtype,
        "quant_algo": quant_algo,
        "kv_cache_quant_algo": kv_cache_quant_algo,
        "spec_dec_algo": spec_dec_algo,
        "extra_acc_spec": extra_acc_spec,
        "references_dir": references_dir,
        "no_reference": no_reference,
        "allow_missing_reference": allow_missing_reference,
        "allow_mismatch": _lines(allow_mismatch, "SERVE_EVAL_ALLOW_MISMATCH"),
        "verdict": verdict,
        "early_stop": early_stop if early_stop is False or early_stop_eps is None else early_stop_eps,
        "api_key_env": api_key_env,
        "headers": _headers(_lines(header, "SERVE_EVAL_HEADER")),
        "proxy": proxy,
        "ca_bundle": ca_bundle,
        "max_tokens_field": max_tokens_field,
        "concurrency": int(concurrency) if concurrency and concurrency.isdecimal() else concurrency,
        "rate_limit": rate_limit,
        "order": order,
        "order_seed": order_seed,
        "stream": stream,
        "max_attempts": max_attempts,
        "retry_budget": retry_budget,
        "max_error_rate": max_error_rate,
        "connect_timeout_s": connect_timeout,
        "stall_timeout_s": stall_timeout,
        "sample_timeout_s": sample_timeout,
        "outage_timeout_s": outage_timeout,
        "max_response_bytes": max_response_bytes,
        "scorer_timeout_s": scorer_timeout,
        "output_dir": output_dir,
    }
    choices = {
        "apply_chat_template": apply_chat_template,
        "tokenizer": str(Path(tokenizer).expanduser().absolute()) if tokenizer else None,
        "system_prompt": system_prompt,
        "num_fewshot": num_fewshot,
        "fewshot_as_multiturn": fewshot_as_multiturn,
        "thinking": thinking,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "sampling_seed": sampling_seed,
        "extra_body": _json_object(extra_body),
        "suite_exact": suite_exact,
    }
    settings_given = {name: value for name, value in given.items() if value is not None}
    levelled = _by_level(ctx, settings_given, resuming=resume is not None)
    if chosen := _choices(ctx, choices, resuming=resume is not None):
        levelled["choices"] = chosen
    follow = not (dry_run or dump_prompts is not None)
    resolved = _resolve(plan, resume, levelled, follow=follow, trust_plan=trust_plan)
    what = rerun_of(rerun, run_all=run_all)
    if resolved.notes:
        from serve_eval.cli._streams import say

        say(*resolved.notes)
    if dry_run or dump_prompts is not None:
        from serve_eval.cli._dry_run import dump, show
        from serve_eval.cli._streams import say

        if dump_prompts is not None:
            say(f"{dump(resolved.plan, dump_prompts)} prompts written to {dump_prompts}; nothing was sent")
        if dry_run:
            raise typer.Exit(show(resolved.plan, as_json=as_json))
        return
    out_dir = resume or resolved.out_dir
    if out_dir is None:
        resolved = replace(resolved, plan=_with_model(resolved.plan))
        out_dir = _new_folder(resolved.plan)
    moved = resume is not None and _on_command_line(ctx, "base_url")
    if not (keep_servers or reuse):
        raise typer.Exit(execute(resolved.plan, out_dir, as_json=as_json, strict=strict, moved=moved, rerun=what))
    from functools import partial

    from serve_eval.cli._streams import say
    from serve_eval.workflows.servers import daemon
    from serve_eval.workflows.servers.reuse import attached, up

    daemon.check(resolved.plan)
    launching = partial(attached, reuse=reuse, keep=keep_servers, told=say)
    try:
        code = execute(
            resolved.plan, out_dir, as_json=as_json, strict=strict, moved=moved, launching=launching, rerun=what
        )
        raise typer.Exit(code)
    finally:
        if keep_servers and (entry := up(resolved.plan)) is not None and entry.endpoint is not None:
            say(f"The servers stay up at {entry.endpoint.base_url}; end them with: serve-eval serve --stop {entry.id}")


def rerun_of(text: str, *, run_all: bool) -> Rerun:
    """What is asked again, in the words of the command line. Raises PlanError for another word."""
    from typing import get_args

    from serve_eval.errors import PlanError
    from serve_eval.evaluation.rerun import Rerun

    chosen: Rerun | None = next((one for one in get_args(Rerun) if one == text), None)
    if chosen is None:
        raise PlanError(f"--rerun: {text!r} is none of {', '.join(get_args(Rerun))}")
    if run_all and chosen not in ("failed", "all"):  # failed: most probably not said
        raise PlanError(f"--run-all asks everything again, and --rerun {chosen} does not: give one of them")
    return "all" if run_all else chosen


def _on_command_line(ctx: typer.Context, name: str) -> bool:
    """Whether an option was given as a flag, and not by its variable or not at all."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _by_level(ctx: typer.Context, given: dict[str, Any], *, resuming: bool) -> dict[str, Any]:
    """The settings without what a higher level overrules: on resuming, all that variables say, since the saved plan is
    what the run was started with; else the address or the launcher that only a variable names beside a flag."""
    renamed = {"set": "settings", "headers": "header"}
    flags = {name: _on_command_line(ctx, renamed.get(name, name.removesuffix("_s"))) for name in given}
    if "early_stop" in given:
        flags["early_stop"] = flags["early_stop"] or _on_command_line(ctx, "early_stop_eps")
    if resuming:
        return {name: value for name, value in given.items() if flags[name]}
    for name, other in (("base_url", "launcher"), ("launcher", "base_url")):
        if flags.get(name) and flags.get(other) is False and given.get("launcher") != "external":
            given.pop(other)
    return given


def _choices(ctx: typer.Context, choices: dict[str, Any], *, resuming: bool) -> dict[str, Any]:
    """The choices of protocol that were made; on resuming, those of flags alone."""
    made = {name: value for name, value in choices.items() if value is not None}
    if resuming:
        made = {name: value for name, value in made.items() if _on_command_line(ctx, name)}
    return {name.removeprefix("sampling_"): value for name, value in made.items()}


def _json_object(text: str | None) -> dict[str, Any] | None:
    import json

    from serve_eval.errors import PlanError

    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise PlanError(f"--extra-body is no JSON: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise PlanError("--extra-body: expected a JSON object, such as '{\"top_k\": 1}'")
    return value


def execute(
    plan: Plan,
    out_dir: Path,
    *,
    as_json: bool = False,
    strict: bool = False,
    moved: bool = False,
    launching: Launching | None = None,
    rerun: Rerun = "failed",
) -> int:
    """Runs a plan with progress on stderr and the verdicts on stdout; returns the exit code."""
    import shlex

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._kept import kept
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._streams import draw, emit, say
    from serve_eval.errors import ServeEvalError
    from serve_eval.evaluation.evaluate import evaluate
    from serve_eval.evaluation.storage.report_file import report_text
    from serve_eval.evaluation.storage.run_folder import holds_run, plan_and_owner
    from serve_eval.evaluation.trust import flag_of
    from serve_eval.report.page import write_page
    from serve_eval.report.terminal import render
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, INTERRUPTED

    base_url = plan.launcher.options.get("base_url")
    where = f"endpoint {base_url}" if base_url else f"launcher {plan.launcher.name}"
    if base_url and os.environ.get("OPENAI_BASE_URL", "").removesuffix("/v1") in (base_url, str(base_url)[:-3]):
        where += " (from OPENAI_BASE_URL)"
    say(f"serve-eval: {where}, tasks {', '.join(task.name for task in plan.tasks)}, run folder {out_dir}")
    shown = progress(PatientConsole(stderr=True, highlight=False, emoji=False))
    try:
        report = run_async(
            evaluate(
                plan, out_dir, progress=shown, strict=strict, moved=moved, launching=launching, told=say, rerun=rerun
            )
        )
    except (Interrupted, ServeEvalError) as ending:
        stopped = isinstance(ending, Interrupted) or ending.exit_code == INFRASTRUCTURE
        if stopped and holds_run(out_dir):
            again = f"serve-eval run --resume {shlex.quote(str(out_dir))}{permissions([plan])}"
            say(kept(out_dir, f"{again}{flag_of([plan], own=plan_and_owner(out_dir)[1])}"))
        elif isinstance(ending, Interrupted):
            say("Interrupted; nothing is kept")
        if isinstance(ending, ServeEvalError):
            raise
        return INTERRUPTED
    write_page(report, out_dir)
    if as_json:
        emit(report_text(out_dir))
    else:
        draw(lambda console: render(report, out_dir, console))
    return report.exit_code


def _resolve(
    plan: Path | None, resume: Path | None, settings: dict[str, Any], *, follow: bool, trust_plan: bool
) -> Resolved:
    """The plan of a file, a folder or flags alone. That of a folder is looked at alone unless it is to be followed."""
    from dataclasses import replace

    from serve_eval.errors import PlanError
    from serve_eval.evaluation.plan.resolve import resolve, to_file
    from serve_eval.evaluation.trust import to_follow, to_read
    from serve_eval.yaml_source import read

    if resume is not None and (plan is not None or "output_dir" in settings):
        raise PlanError("--resume takes the plan and the folder of the run: give neither a plan file nor -o with it")
    if resume is None and trust_plan:
        raise PlanError("--trust-plan is for --resume: a plan that is given is your own")
    if resume is not None:
        included = settings.get("include_path", ())
        saved = (
            to_follow(resume, settings, trust_plan=trust_plan) if follow else to_read(resume, included, writes=False)
        )
        replaced = ("OPENAI_BASE_URL", "INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
        inherited = {name: value for name, value in os.environ.items() if name not in replaced}
        resolved = resolve(to_file(saved), settings, inherited)
        return replace(resolved, plan=replace(resolved.plan, integration_test=saved.integration_test))
    if plan is None:
        return resolve({}, settings, os.environ)
    document = read(plan, PlanError)
    if not isinstance(document.value, dict):
        raise PlanError(f"{plan}: expected a mapping of keys such as model and tasks")
    return resolve(document.value, settings, os.environ, lambda *path: f"{plan}:{document.line(*path)}: ")


def _with_margin(settings: list[str] | None, margin: float | None) -> list[str] | None:
    return settings if margin is None else [*(settings or ()), f"verdict.margin={margin}"]


def _lines(given: list[str] | None, variable: str) -> list[str] | None:
    """Values of a repeated option, or the lines of its variable."""
    return given or [line for line in os.environ.get(variable, "").splitlines() if line.strip()] or None


def names_of(given: list[str] | None) -> list[str] | None:
    """The names that an option takes separated by commas, of all the times that it was given."""
    names = [name.strip() for text in given or () for name in text.split(",")]
    return [name for name in names if name] or None


def _headers(lines: list[str] | None) -> dict[str, str] | None:
    from serve_eval.errors import PlanError

    if lines is None:
        return None
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise PlanError("--header: expected 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def _with_model(plan: Plan) -> Plan:
    """The plan with the model that its endpoint lists where it names none: the default folder is called after it."""
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import say
    from serve_eval.evaluation.endpoint.launch import with_model
    from serve_eval.verdicts.exit_code import INTERRUPTED

    if plan.model is not None:
        return plan
    try:
        return run_async(with_model(plan, os.environ, told=say))
    except Interrupted:
        say("Interrupted; nothing is kept")
        raise typer.Exit(INTERRUPTED) from None


def _new_folder(plan: Plan) -> Path:
    from datetime import UTC, datetime

    stamp = datetime.now(UTC).strftime("%Y%m%d_%H%M%S")
    name = "".join(c if c.isalnum() or c in "-._" else "-" for c in (plan.model or "endpoint").rsplit("/", 1)[-1])[:60]
    return Path("outputs") / f"{stamp}_{name}"
