"""Run `serve-eval compare`: judge B against A, two endpoints, plans or finished runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._common_options import FaceOptions, Strict, TrustPlan, parse_loads
from serve_eval.cli._options import command
from serve_eval.cli._sides import (
    PacingOptions,
    RehearsedPromptOptions,
    SideProtocolOptions,
    is_endpoint,
    new_folder,
    resolve_side,
    settings_with,
    with_plan,
)
from serve_eval.cli._streams import say
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plan.shared_options import margin_of_verdict, number_or_word
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.workflows.compare.compare import CompareRules, CompareSide


_SIDE = "A running endpoint (host:port or URL), a plan file, or the folder of a finished run."
_INVARIANTS = "serve-eval check invariants"
USUAL = (
    "tasks",
    "cases",
    "requests",
    "dataset_root",
    "model",
    "limit",
    "settings",
    "verdict",
    "margin",
    "again",
    "loads",
    "output_dir",
    "as_json",
)
EXAMPLES = (
    (
        "Test whether a new deployment is worse than the old one:",
        "serve-eval compare old:8000 new:8000 --tasks gsm8k -o OUT",
    ),
    (
        "Start both from their plans, and test for a drop of 1 point:",
        "serve-eval compare a.yaml b.yaml --margin 1.0 -o OUT",
    ),
    ("Compare a running endpoint with a finished run:", "serve-eval compare RUN host:8000 -o OUT"),
    (
        "Find the number of requests in flight from which B is worse:",
        "serve-eval compare a:8000 b:8000 --tasks gsm8k --concurrency 1,8,64",
    ),
)


@freeze
class ComparedPromptOptions(RehearsedPromptOptions):
    """Choose the prompts of both sides."""

    plan_only: ClassVar[tuple[str, ...]] = ("samples", "preset", "allow_code_execution")

    repeats: Annotated[
        str | None,
        Setting(
            "Ask every sample N times; usual: as run does.",
            metavar="N|usual",
            parse=number_or_word,
        ),
    ] = None


@freeze
class ComparedPacingOptions(PacingOptions):
    """Choose how requests are sent, and what those to both sides may cost together."""

    max_tokens_total: shared_options.MaxTokensTotal = None
    max_time: shared_options.MaxTime = None


@freeze
class RuleOptions:
    """Choose the verdict rule for B."""

    title: ClassVar[str] = "Verdict"
    verdict: Annotated[
        str,
        Setting(
            (
                "Verdict rule: paired (default), noninferiority, tokens (any difference fails) or,"
                " with --repeats, anchors."
            ),
            metavar="RULE",
        ),
    ] = "paired"
    margin: Annotated[
        float | None,
        Setting(
            (
                "Smallest drop that matters, in points (default 1; with paired: the drop that the"
                " classic test detects)."
            ),
            metavar="POINTS",
            key="set",
            parse=margin_of_verdict,
        ),
    ] = None
    allow_mismatch: shared_options.AllowMismatch = None


@freeze
class SideOptions:
    """Choose how A and B are asked and which flips are examined."""

    title: ClassVar[str] = "Comparison"
    command: ClassVar[str] = "compare"
    model_b: Annotated[
        str | None,
        Setting(
            "Model name of B, if it differs from --model.",
            metavar="NAME",
            flag=False,
        ),
    ] = None
    route_b: Annotated[
        str | None,
        Setting(
            "Route of B's chat prompts, if it differs from A's, as --route of serve-eval run.",
            metavar="ROUTE",
            flag=False,
        ),
    ] = None
    again: Annotated[
        int | None,
        Setting(
            "Prompts per task that A and B are asked twice (default 200; 0: none).",
            flags=("--self",),
            metavar="N",
        ),
    ] = None
    show_flips: Annotated[
        int | None,
        Setting(
            "Flips per task to list and examine (default 20).",
            metavar="N",
            flag=False,
        ),
    ] = None
    one_after_the_other: Annotated[
        bool,
        Setting(
            "Ask all of A, then all of B.",
            flag=False,
        ),
    ] = False
    loads: Annotated[
        str | None,
        Setting(
            (
                "Requests in flight at each endpoint (default 64). Several, such as 1,4,16:"
                " compare at each."
            ),
            flags=("--concurrency",),
            metavar="N",
        ),
    ] = None
    trust_plan: TrustPlan = False


@freeze
class CompareResultOptions:
    """Choose the folder and the output."""

    title: ClassVar[str] = "Output"
    command: ClassVar[str] = "compare"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_compare). An existing one is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    strict: Strict = False
    page_samples: Annotated[
        int | None,
        Setting(
            "Answers that the page shows of each side (default 5000); show prints every one.",
            metavar="N",
            flag=False,
        ),
    ] = None


@freeze
class MovedOptions:
    """Refuse the options that `serve-eval check invariants` took over from this command."""

    title: ClassVar[str] = ""
    invariants: Annotated[
        bool,
        Setting(
            "",
            refused=(
                f"--invariants is now a separate command: {_INVARIANTS}",
                (
                    f"For example {_INVARIANTS} host:8000 --tasks gsm8k; the other options are"
                    " the same."
                ),
            ),
        ),
    ] = False
    tokenizer: Annotated[
        str | None,
        Setting(
            "",
            refused=(
                f"--tokenizer is for {_INVARIANTS}",
                "For both sides: --set TASK.tokenizer=DIR.",
            ),
        ),
    ] = None
    chunk_tokens: Annotated[
        list[int] | None, Setting("", refused=(f"--chunk-tokens is for {_INVARIANTS}", ""))
    ] = None


@command(usual=USUAL, examples=EXAMPLES)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The reference. {_SIDE}")],
    prompts: ComparedPromptOptions,
    protocol: SideProtocolOptions,
    rule: RuleOptions,
    asked: SideOptions,
    sending: ComparedPacingOptions,
    result: CompareResultOptions,
    faces: FaceOptions,
    moved: MovedOptions,
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The side to judge, in one of the same forms.")
    ] = None,
) -> None:
    """Ask two endpoints the same prompts at the same time, and judge B against A.

    With the same -o, the command resumes an interrupted comparison.

    Exit codes: 0 pass, 1 fail, 2 usage, 3 undecided or not comparable, 4 endpoint or
    infrastructure, 130 interrupted.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import ask_and_end
    from serve_eval.errors import PlanError
    from serve_eval.storage.story_files import COMPARE
    from serve_eval.workflows.compare.at_loads import compare_at_loads, make_load_document
    from serve_eval.workflows.compare.compare import SELF, SHOW_FLIPS, CompareRules
    from serve_eval.workflows.compare.sides import check_two_servers

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    for name, number in (("--self", asked.again), ("compare.show_flips", asked.show_flips)):
        if number is not None and number < 0:
            raise PlanError(f"{name} must be 0 or more")
    settings = settings_with(protocol, prompts, rule, sending)
    loads = () if asked.loads is None else parse_loads(asked.loads)
    if len(loads) == 1:
        settings["concurrency"] = loads[0]
    if b is None:
        raise PlanError(
            "name A and B", hint=f"To compare an endpoint with itself: {_INVARIANTS} {a}"
        )
    other = {"model": asked.model_b, "route": asked.route_b}
    own_b = {name: value for name, value in other.items() if value is not None}
    sides, verdict = _sides(a, b, settings, own_b, trust_plan=asked.trust_plan)
    rules = CompareRules(
        verdict,
        again=SELF if asked.again is None else asked.again,
        allow_mismatch=(*(rule.allow_mismatch or ()), *(["route"] if asked.route_b else [])),
    )
    check_two_servers(*sides, rules)
    out_dir = result.output_dir or new_folder("compare")
    how: dict[str, Any] = {
        "show_flips": SHOW_FLIPS if asked.show_flips is None else asked.show_flips,
        "one_after_the_other": asked.one_after_the_other,
        "strict": result.strict,
    }
    if len(loads) > 1:
        ask = partial(compare_at_loads, *sides, rules, out_dir, loads, **how)
        plans = f"*/{COMPARE.plan}"
        raise typer.Exit(ask_and_end("compare", ask, make_load_document, out_dir, plans, faces))
    raise typer.Exit(_execute(sides, rules, out_dir, how, result, faces))


def _sides(
    a: str, b: str, settings: dict[str, Any], own_b: dict[str, Any], *, trust_plan: bool
) -> tuple[tuple[CompareSide, CompareSide], Any]:
    """Return both sides and the rule.

    An endpoint is asked the prompts of the other side, if that is a plan or a run. If the run
    belongs to another user, its plan must be trusted to reach other endpoints. `own_b` are settings
    of B alone.
    """
    from serve_eval.evaluation.trust import to_follow
    from serve_eval.plan.plan_file import to_file
    from serve_eval.workflows.compare.compare import CompareSide

    own = {"A": settings, "B": {**settings, **own_b}}
    texts = {"A": a, "B": b}
    for name, text in texts.items():
        if is_endpoint(text) and Path(run := texts["A" if name == "B" else "B"]).is_dir():
            to_follow(Path(run), {**own[name], "base_url": text}, trust_plan=trust_plan)
    found = {
        name: resolve_side(text, own[name]) for name, text in texts.items() if not is_endpoint(text)
    }
    documents = {name: to_file(resolved.plan) for name, (resolved, _) in found.items()}
    for name, text in texts.items():
        if is_endpoint(text):
            document = next(iter(documents.values()), {})
            document = {
                key: value for key, value in document.items() if key not in ("launcher", "verdict")
            }
            found[name] = with_plan(document, {**own[name], "base_url": text}), None
    sides = {
        name: CompareSide(resolved.plan, folder=folder)
        for name, (resolved, folder) in found.items()
    }
    return (sides["A"], sides["B"]), sides["A"].plan.verdict


def _execute(
    sides: tuple[CompareSide, CompareSide],
    rules: CompareRules,
    out_dir: Path,
    how: dict[str, Any],
    result: CompareResultOptions,
    faces: FaceOptions,
) -> int:
    """Compare, with progress on stderr and the result on stdout. Return the exit code."""
    from serve_eval.cli._ending import RedResult, ask_in_folder, end, fail_undecided
    from serve_eval.cli._progress import show_progress
    from serve_eval.storage.story_files import COMPARE
    from serve_eval.workflows.compare.compare import compare

    say(f"serve-eval compare: folder {out_dir}")
    story = compare(
        *sides,
        rules,
        out_dir,
        **how,
        progress=show_progress(),
        notify=say,
    )
    comparison = ask_in_folder(story, out_dir, COMPARE.plan)
    from serve_eval.workflows.compare.document import make_document

    red = RedResult(out_dir, comparison.exit_code)
    document = make_document(
        comparison,
        out_dir,
        red.leads.causes,
        red.leads.places,
        include_path=sides[1].plan.include_path,
        most=result.page_samples,
    )
    code = end(document, faces, folder=out_dir)
    return fail_undecided(comparison, code, strict=result.strict)
