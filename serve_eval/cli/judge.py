"""Run `serve-eval judge`: judge or score a finished run again, without its endpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._common_options import FaceOptions, Strict
from serve_eval.cli._options import command, settings_of
from serve_eval.cli._run_folder import LATEST, folders_of, name_run
from serve_eval.cli._sides import inherit_variables
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan.shared_options import (
    AllowCodeExecution,
    AllowMismatch,
    Expect,
    IncludePath,
    Margin,
    NoReference,
    ReferenceModel,
    ReferencesDir,
    VerdictRuleName,
)
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.schema import Plan


RuleOptions = Annotated[
    list[str] | None,
    Setting(
        "Set an option of the rule, or reference_model; with --rescore, one of a task's scoring."
        " Repeatable.",
        flags=("--set",),
        metavar="verdict.OPTION=VALUE|TASK.OPTION=VALUE",
        key="set",
        in_file=None,
    ),
]


_JUDGED_KEYS = ("reference_model", "no_reference", "allow_mismatch", "allow_code_execution")
"""Keys of a plan by which a saved run may be judged again."""


@freeze
class JudgedAgainOptions:
    """Choose how the saved plan is judged: options of a plan, which `settings_of` reads."""

    title: ClassVar[str] = "Verdict"
    plan_only: ClassVar[tuple[str, ...]] = ("no_reference",)
    verdict: VerdictRuleName = None
    margin: Margin = None
    rule_options: RuleOptions = None
    references_dir: ReferencesDir = None
    reference_model: ReferenceModel = None
    allow_mismatch: AllowMismatch = None
    no_reference: NoReference = None
    expect: Expect = None
    allow_code_execution: AllowCodeExecution = None


@freeze
class ScoredAgainOptions:
    """Choose whether the answers are scored again first, and where the new scores go."""

    title: ClassVar[str] = "Scores"
    rescore: Annotated[
        bool, Setting("Score the answers again and show the changes; nothing is judged.")
    ] = False
    output_dir: Annotated[
        Path | None,
        Setting(
            "With --rescore: new run folder for the new scores, which is judged.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None


@freeze
class VerdictOutputOptions:
    """Choose the code to load and the form of the output."""

    title: ClassVar[str] = "Code and output"
    include_path: IncludePath = None
    strict: Strict = False


@command()
def judge(
    judged: JudgedAgainOptions,
    scored: ScoredAgainOptions,
    output: VerdictOutputOptions,
    faces: FaceOptions,
    run: Annotated[
        Path, name_run("A run folder, or the folder of a suite (default latest).")
    ] = LATEST,
) -> None:
    """Judge the results in a run folder again, by another rule or other references.

    Nothing is sent, and the folder stays as it is. Of a suite, each finished run is judged by that
    rule, and its table has the correction for many tests. --rescore scores the answers again, and
    shows what changed.

    Exit codes: the same as for `serve-eval run`. With --rescore 0 even if something changed, 2
    usage, folder or data, 5 no answer to score.
    """

    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import RedResult, end, fail_undecided
    from serve_eval.evaluation.evaluate import judge_again
    from serve_eval.report.run.document import make_run_document
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.storage.story_files import SUITE

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if scored.rescore:
        _check_rescored(judged, output)
        raise typer.Exit(
            rescore(
                run,
                faces,
                settings=judged.rule_options or (),
                output_dir=scored.output_dir,
                references_dir=judged.references_dir,
                allow_code_execution=bool(judged.allow_code_execution),
                include_path=output.include_path,
            )
        )
    if scored.output_dir is not None:
        raise PlanError("-o: only new scores have a folder", hint="Give --rescore too.")
    if SUITE.has_plan(run):
        raise typer.Exit(_judge_suite(judged, output, faces, run))
    report = judge_again(choose_plan(judged, output.include_path, run), run, strict=output.strict)
    red = RedResult(run, report.exit_code, report.plan.include_path)
    document = make_run_document(report, run, red.leads.causes, red.leads.places)
    code = end(document, faces, about=run, figures=pretty_json(report))
    raise typer.Exit(fail_undecided(report, code, strict=output.strict))


def _check_rescored(judged: JudgedAgainOptions, output: VerdictOutputOptions) -> None:
    """Raise PlanError for an option that chooses a verdict, which --rescore does not give."""

    given = {
        "--verdict": judged.verdict,
        "--margin": judged.margin,
        "reference_model": judged.reference_model,
        "--allow-mismatch": judged.allow_mismatch,
        "--set no_reference": judged.no_reference,
        "--expect": judged.expect,
        "--strict": output.strict or None,
    }
    if wrong := [flag for flag, value in given.items() if value is not None]:
        raise PlanError(
            f"{wrong[0]}: --rescore shows changed scores, and judges nothing",
            hint="Write the new scores with -o NEW, and judge them: serve-eval judge NEW.",
        )


def choose_plan(judged: JudgedAgainOptions, include_path: Sequence[str] | None, run: Path) -> Plan:
    """Return the plan of a run folder with the options by which it is judged now.

    Raises PlanError for options that do not belong to the rule.
    """
    from serve_eval.evaluation.trust import to_read
    from serve_eval.plan.plan_file import to_file
    from serve_eval.plan.resolve import resolve

    for text in judged.rule_options or ():
        if not re.match(rf"verdict\.|expect\.|({'|'.join(_JUDGED_KEYS)})=", text):
            raise PlanError(
                f"--set {text}: here it sets options of the rule, as in verdict.margin=2, or"
                f" {', '.join(_JUDGED_KEYS)}, expect.NAME",
                hint="What was asked stays as it is. --rescore sets scoring options.",
            )
    given = set() if judged.verdict is None else {"verdict"}
    plan = to_read(run, folders_of(include_path), replaced=given)
    saved, was = to_file(plan), plan.verdict.name
    if judged.verdict not in (None, was):
        saved.pop("early_stop", None)  # it belongs to the other rule
    if judged.verdict is not None or judged.references_dir is not None:
        saved.pop("no_reference", None)  # it was set for another verdict
    return resolve(saved, settings_of(judged), inherit_variables()).plan


def _judge_suite(
    judged: JudgedAgainOptions, output: VerdictOutputOptions, faces: FaceOptions, folder: Path
) -> int:
    """Judge the finished runs of a suite, print its table, and return the exit code."""
    from serve_eval.cli._ending import end
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.suite.document import make_document
    from serve_eval.workflows.suite.execution import judge_suite_again

    report = judge_suite_again(
        folder, lambda run: choose_plan(judged, output.include_path, run), strict=output.strict
    )
    document = make_document(report, folder, stored=False)
    return end(document, faces, about=folder, figures=pretty_json(report))


def rescore(
    run: Path,
    faces: FaceOptions,
    *,
    settings: Sequence[str],
    output_dir: Path | None,
    references_dir: str | None,
    allow_code_execution: bool,
    include_path: Sequence[str] | None,
) -> int:
    """Score the answers in a run folder again, show what changed, and return the exit code.

    Nothing is sent, and the folder stays as it is. With `output_dir` the answers have the new
    scores in a new run folder, judged by the references of `references_dir`.
    """
    from serve_eval.cli._ending import end
    from serve_eval.plugins.registry import name_folders
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.verdicts.exit_code import NOTHING_SCORED, PASS
    from serve_eval.workflows.rescore import rescore as again
    from serve_eval.workflows.rescore.document import make_document

    if references_dir is not None and output_dir is None:
        raise PlanError(
            "--references-dir: only a new run folder is judged",
            hint="Give -o NEW too, or use serve-eval judge RUN --references-dir DIR.",
        )
    folders = folders_of(include_path)
    found = again(
        run,
        settings,
        to=output_dir,
        allow_code_execution=allow_code_execution,
        include_path=folders,
        references_dir=None if references_dir is None else Path(references_dir),
    )
    allowed = " --allow-code-execution" * allow_code_execution
    document = make_document(
        found,
        run,
        exit_code=PASS if any(one.answered for one in found) else NOTHING_SCORED,
        to=output_dir,
        flags=f"{allowed}{name_folders(folders)}",
        again=_write_again(run, settings),
    )
    figures = pretty_json({"schema_version": 1, "run": str(run), "tasks": found})
    return end(document, faces, about=output_dir or run, figures=figures)


def _write_again(run: Path, settings: Sequence[str]) -> str:
    """Return the command that writes these scores into a new folder next to the run."""
    from serve_eval.shell_words import join_words, quote_path

    folder = run.resolve() if run.name in ("", "..") else run
    names = (folder.name, *(f"{folder.name}_{number}" for number in range(2, 100)))
    new = next(
        (one for name in names if not (one := folder.with_name(f"{name}_rescored")).exists()), run
    )
    given = "".join(f" {join_words(['--set', one])}" for one in settings)
    return f"serve-eval judge --rescore {quote_path(run)}{given} -o {quote_path(new)}"
