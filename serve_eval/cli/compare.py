"""`serve-eval compare`: two endpoints, plans or finished runs beside each other, B judged against A."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._include import IncludePath, TrustPlan, folders_of
from serve_eval.cli.run import _headers, _lines, _with_margin, names_of

if TYPE_CHECKING:
    from serve_eval.evaluation.plan.resolve import Resolved
    from serve_eval.workflows.compare.compare import Rules, Side

_SIDE = "A running endpoint (host:port or URL), a plan file, or the folder of a finished run."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The reference. {_SIDE}")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="What is judged: one of the same.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--tasks", "-t", help="Tasks, separated by commas. Repeatable.")
    ] = None,
    cases: Annotated[list[str] | None, typer.Option("--cases", help="Your own cases (YAML). Repeatable.")] = None,
    dataset_root: Annotated[str | None, typer.Option("--dataset-root", help="Folder that holds the data sets.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name, of both.")] = None,
    model_b: Annotated[str | None, typer.Option("--model-b", help="Model name of B, where it is another one.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="A seeded random subset of N samples per task.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Ask every sample so many times.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the subset (default 0).")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of a task, gsm8k.max_tokens=512, or of the verdict. Repeatable."),
    ] = None,
    verdict: Annotated[
        str, typer.Option("--verdict", help="paired, noninferiority or (with --repeats) anchors.")
    ] = "paired",
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="Drop in points that matters (default: paired the classic test's own, else 1)."),
    ] = None,
    again: Annotated[
        int | None,
        typer.Option("--self", metavar="N", help="Prompts per task that A is asked twice (default 200; 0: none)."),
    ] = None,
    show_flips: Annotated[
        int | None,
        typer.Option("--show-flips", metavar="N", help="Flips per task to list and look at closely (default 20)."),
    ] = None,
    invariants: Annotated[
        bool,
        typer.Option("--invariants", help="Without B: ask A the same under changes that should change no answer."),
    ] = False,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Folder with the chat template, for --invariants.")
    ] = None,
    chunk_tokens: Annotated[
        list[int] | None,
        typer.Option("--chunk-tokens", help="Chunk size to try for --invariants (default 2048 and 8192; 0: none)."),
    ] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="Insist that A and B are plans whose launchers start their servers.")
    ] = False,
    one_after_the_other: Annotated[
        bool, typer.Option("--one-after-the-other", help="First all of A, then all of B.")
    ] = False,
    allow_mismatch: Annotated[
        list[str] | None, typer.Option("--allow-mismatch", help="Compare although this protocol field differs.")
    ] = None,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Run code that the models write, shut off.")
    ] = False,
    include_path: IncludePath = None,
    trust_plan: TrustPlan = False,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Requests in flight at each endpoint (default 64).")
    ] = None,
    rate_limit: Annotated[
        float | None, typer.Option("--rate-limit", help="Requests started per second at each endpoint.")
    ] = None,
    order: Annotated[str | None, typer.Option("--order", help="random (default), natural, prefix, longest.")] = None,
    order_seed: Annotated[
        int | None, typer.Option("--order-seed", help="Seed of the random order, of both (default: drawn).")
    ] = None,
    stream: Annotated[bool | None, typer.Option("--stream/--no-stream", help="Ask for streams, for times.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Variable that holds the key (default OPENAI_API_KEY).")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="Extra header 'Name: value', ${VARIABLE} filled in.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder (default outputs/<time>_compare). One that is there goes on."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 instead of 3.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json.")] = False,
) -> None:
    """Ask two endpoints the same prompts at the same time, and judge B with A as the reference.

    The same command again goes on where it was ended.

    Exit codes: 0 pass, 1 fail, 2 usage, 3 undecided or not comparable, 4 endpoint
    or infrastructure, 130 interrupted.
    """
    from serve_eval.errors import PlanError
    from serve_eval.workflows.compare.compare import SELF, SHOW_FLIPS, Rules
    from serve_eval.workflows.invariants.check import CHUNKS

    numbers = [("self", again), ("show-flips", show_flips), *(("chunk-tokens", size) for size in chunk_tokens or ())]
    for name, number in numbers:
        if number is not None and number < 0:
            raise PlanError(f"--{name} must be 0 or more")
    given: dict[str, Any] = {
        "model": model,
        "tasks": names_of(tasks),
        "cases": cases or None,
        "dataset_root": dataset_root,
        "limit": limit,
        "repeats": repeats,
        "seed": seed,
        "set": _with_margin(settings, margin),
        "verdict": verdict,
        "allow_mismatch": allow_mismatch or None,
        "allow_code_execution": allow_code_execution or None,
        "include_path": folders_of(include_path) or None,
        "concurrency": concurrency,
        "rate_limit": rate_limit,
        "order": order,
        "order_seed": order_seed,
        "stream": stream,
        "api_key_env": api_key_env,
        "headers": _headers(_lines(header, "SERVE_EVAL_HEADER")),
    }
    settings_given = {name: value for name, value in given.items() if value is not None}
    if invariants is (b is not None):
        raise PlanError("name A and B, or A alone with --invariants")
    if launch:
        _check_launched({"A": a} if b is None else {"A": a, "B": b}, settings_given)
    if b is None:
        folder = str(Path(tokenizer).expanduser().absolute()) if tokenizer else None
        chunks = CHUNKS if chunk_tokens is None else tuple(size for size in chunk_tokens if size)
        out_dir = output_dir or _new_folder()
        raise typer.Exit(_invariants(a, settings_given, out_dir, folder, chunks, as_json=as_json))
    if tokenizer is not None:
        raise PlanError("--tokenizer is for --invariants", hint="For both sides: --set TASK.tokenizer=DIR.")
    if chunk_tokens is not None:
        raise PlanError("--chunk-tokens is for --invariants")
    sides, rule = _sides(a, b, settings_given, model_b, trust_plan=trust_plan)
    rules = Rules(
        rule=rule,
        again=SELF if again is None else again,
        allow_mismatch=tuple(allow_mismatch or ()),
    )
    flips = SHOW_FLIPS if show_flips is None else show_flips
    out_dir = output_dir or _new_folder()
    raise typer.Exit(
        _execute(sides, rules, out_dir, show_flips=flips, apart=one_after_the_other, strict=strict, as_json=as_json)
    )


def _sides(
    a: str, b: str, settings: dict[str, Any], model_b: str | None, *, trust_plan: bool
) -> tuple[tuple[Side, Side], Any]:
    """Both sides and the rule. An endpoint is asked what the other side asks, where that is a plan or a run; of a run
    of somebody else, what else that would reach has to be trusted."""
    from serve_eval.evaluation.plan.resolve import to_file
    from serve_eval.evaluation.trust import to_follow
    from serve_eval.workflows.compare.compare import Side

    own = {"A": settings, "B": settings if model_b is None else {**settings, "model": model_b}}
    texts = {"A": a, "B": b}
    for name, text in texts.items():
        if _is_endpoint(text) and Path(run := texts["A" if name == "B" else "B"]).is_dir():
            to_follow(Path(run), {**own[name], "base_url": text}, trust_plan=trust_plan)
    found = {name: _resolved(text, own[name]) for name, text in texts.items() if not _is_endpoint(text)}
    documents = {name: to_file(resolved.plan) for name, (resolved, _) in found.items()}
    for name, text in texts.items():
        if _is_endpoint(text):
            document = next(iter(documents.values()), {})
            document = {key: value for key, value in document.items() if key not in ("launcher", "verdict")}
            found[name] = _with_plan(document, {**own[name], "base_url": text}), None
    sides = {name: Side(plan=resolved.plan, folder=folder) for name, (resolved, folder) in found.items()}
    return (sides["A"], sides["B"]), sides["A"].plan.verdict


def _check_launched(texts: dict[str, str], settings: dict[str, Any]) -> None:
    """Raises PlanError for a side that is no plan, or whose plan launches nothing."""
    from serve_eval.errors import PlanError

    problems = []
    for name, text in texts.items():
        if _is_endpoint(text) or Path(text).is_dir():
            what = "a running endpoint" if _is_endpoint(text) else "a finished run"
            problems.append(f"--launch: {name}, {text}, is {what}, and no plan file")
        elif _resolved(text, settings)[0].plan.launcher.name == "external":
            problems.append(f"--launch: the plan of {name}, {text}, names no launcher that starts servers")
    if problems:
        raise PlanError(problems, hint="Such as launcher: {name: trtllm}. Without --launch, each side may be anything.")


def _is_endpoint(text: str) -> bool:
    return not Path(text).exists() and not text.endswith((".yaml", ".yml"))


def _resolved(text: str, settings: dict[str, Any]) -> tuple[Resolved, Path | None]:
    """The plan of a file or of a run folder, with that folder."""
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.plan.resolve import to_file
    from serve_eval.evaluation.trust import to_read
    from serve_eval.yaml_source import read

    path = Path(text)
    if path.is_dir():
        saved = to_file(to_read(path, settings.get("include_path", ()), writes=False))
        saved = {key: value for key, value in saved.items() if key not in ("verdict", "early_stop")}
        judged = [one for one in settings.get("set", ()) if one.startswith("verdict.")]
        kept: dict[str, Any] = {name: settings[name] for name in ("verdict", "include_path") if name in settings}
        return _with_plan(saved, {**kept, "set": judged}), path
    document = read(path, PlanError)
    if not isinstance(document.value, dict):
        raise PlanError(f"{path}: expected a mapping of keys such as model and tasks")
    content = {key: value for key, value in document.value.items() if key not in ("verdict", "early_stop")}
    return _with_plan(content, settings, lambda *place: f"{path}:{document.line(*place)}: "), None


def _with_plan(document: dict[str, Any], settings: dict[str, Any], line: Any = None) -> Resolved:
    """The plan of a side. Variables that stand for an address, or ask for less, would be those of both."""
    from serve_eval.evaluation.plan.resolve import resolve

    replaced = ("OPENAI_BASE_URL", "INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
    inherited = {name: value for name, value in os.environ.items() if name not in replaced}
    return resolve(document, settings, inherited, *([] if line is None else [line]))


def _invariants(
    a: str, settings: dict[str, Any], out_dir: Path, tokenizer: str | None, chunks: tuple[int, ...], *, as_json: bool
) -> int:
    """Checks one endpoint against itself."""

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._kept import kept
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._streams import draw, emit, say
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.storage.file_names import INVARIANTS
    from serve_eval.evaluation.storage.private_files import written_text
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.invariants.check import check
    from serve_eval.workflows.invariants.text import render

    if Path(a).is_dir():
        raise PlanError(f"{a} is a finished run, and --invariants asks an endpoint")
    plan = (_with_plan({}, {**settings, "base_url": a}) if _is_endpoint(a) else _resolved(a, settings)[0]).plan
    say(f"serve-eval compare --invariants: folder {out_dir}")
    shown = progress(PatientConsole(stderr=True, highlight=False, emoji=False))
    try:
        found = run_async(check(plan, out_dir, tokenizer=tokenizer, chunk_tokens=chunks, progress=shown, told=say))
    except Interrupted:
        say(kept(out_dir, f"the same command with -o {out_dir}"))
        return INTERRUPTED
    if as_json:
        emit(written_text(out_dir / INVARIANTS))
    else:
        draw(lambda console: render(found, out_dir, console))
    return found.exit_code


def _new_folder() -> Path:
    from datetime import UTC, datetime

    return Path("outputs") / f"{datetime.now(UTC):%Y%m%d_%H%M%S}_compare"


def _execute(
    sides: tuple[Side, Side],
    rules: Rules,
    out_dir: Path,
    *,
    show_flips: int,
    apart: bool,
    strict: bool,
    as_json: bool,
) -> int:

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._kept import kept
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._streams import draw, emit, say
    from serve_eval.errors import ServeEvalError
    from serve_eval.evaluation.storage.file_names import COMPARISON, COMPARISON_PLAN
    from serve_eval.evaluation.storage.private_files import written_text
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, INTERRUPTED
    from serve_eval.workflows.compare.compare import compare as compare_both
    from serve_eval.workflows.compare.text import render

    say(f"serve-eval compare: folder {out_dir}")
    shown = progress(PatientConsole(stderr=True, highlight=False, emoji=False))
    try:
        comparison = run_async(
            compare_both(
                *sides,
                rules,
                out_dir,
                show_flips=show_flips,
                one_after_the_other=apart,
                strict=strict,
                progress=shown,
                told=say,
            )
        )
    except (Interrupted, ServeEvalError) as ending:
        stopped = isinstance(ending, Interrupted) or ending.exit_code == INFRASTRUCTURE
        if stopped and (out_dir / COMPARISON_PLAN).exists():
            say(kept(out_dir, f"the same command with -o {out_dir}"))
        elif isinstance(ending, Interrupted):
            say("Interrupted; nothing is kept")
        if isinstance(ending, ServeEvalError):
            raise
        return INTERRUPTED
    if as_json:
        emit(written_text(out_dir / COMPARISON))
    else:
        draw(lambda console: render(comparison, out_dir, console))
    return comparison.exit_code
