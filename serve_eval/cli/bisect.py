"""Run `serve-eval bisect`: find the option or the image that broke the accuracy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._sides import (
    SendingOptions,
    SidePromptOptions,
    SideProtocolOptions,
    new_folder,
    resolve_side,
    settings_with,
    with_plan,
)
from serve_eval.cli._streams import emit
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting
from serve_eval.workflows.bisect.configurations import BisectRules

if TYPE_CHECKING:
    from serve_eval.workflows.bisect.configurations import Configurations


USUAL = (
    "good",
    "bad",
    "plan",
    "steps",
    "margin",
    "budget_starts",
    "tasks",
    "dataset_root",
    "limit",
    "output_dir",
    "dry_run",
    "as_json",
)
EXAMPLES = (
    (
        "Show the options in which two plans differ, and the first steps:",
        "serve-eval bisect --good A.yaml --bad B.yaml --dry-run",
    ),
    (
        "Find the option that broke the accuracy:",
        "serve-eval bisect --good A.yaml --bad B.yaml --tasks gsm8k -o OUT",
    ),
    (
        "Find the first bad image, with {step} as its tag in the plan:",
        "serve-eval bisect --plan PLAN.yaml --steps v1,v2,v3,v4 -o OUT",
    ),
)


@freeze
class OptionSearchOptions:
    """Choose two plans between which options are searched."""

    title: ClassVar[str] = "Options between two plans"
    command: ClassVar[str] = "bisect"
    good: Annotated[Path | None, Setting("Plan file that serves well.", metavar="PLAN")] = None
    bad: Annotated[Path | None, Setting("Plan file that serves worse.", metavar="PLAN")] = None
    keep: Annotated[
        list[str] | None,
        Setting(
            "Option that keeps its good value everywhere. Repeatable.",
            metavar="NAME",
            flag=False,
        ),
    ] = None
    together: Annotated[
        list[str] | None,
        Setting(
            "Options that change at once, such as tp,pp. Repeatable.",
            metavar="A,B",
            flag=False,
        ),
    ] = None


@freeze
class StepSearchOptions:
    """Choose a plan and the steps in a row that are searched."""

    title: ClassVar[str] = "Steps in a row"
    command: ClassVar[str] = "bisect"
    plan: Annotated[
        Path | None,
        Setting("Plan file with {step} in place of a tag or commit.", metavar="PLAN"),
    ] = None
    steps: Annotated[
        str | None, Setting("The steps, the good one first and the bad one last.", metavar="A,B,C")
    ] = None
    steps_file: Annotated[
        Path | None,
        Setting(
            "File with one step per line instead.",
            metavar="FILE",
            flag=False,
        ),
    ] = None


@freeze
class BisectOutputOptions:
    """Choose the folder."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_bisect). An existing one goes on.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    dry_run: Annotated[
        bool, Setting("Show the first three steps and the expected starts; send nothing.")
    ] = False


@command(usual=USUAL, examples=EXAMPLES)
def bisect(
    options: OptionSearchOptions,
    steps: StepSearchOptions,
    rules: BisectRules,
    prompts: SidePromptOptions,
    protocol: SideProtocolOptions,
    sending: SendingOptions,
    output: BisectOutputOptions,
    faces: FaceOptions,
) -> None:
    """Find which option, or which image, broke the accuracy.

    The good configuration is asked first. Each further step starts one server with the
    configuration that is expected to tell most, and asks until it is worse or the same. With the
    same -o, the command goes on.

    Exit codes: 0 no option, 1 a culprit, 2 usage, 3 undecided or not comparable, 4 endpoint or
    infrastructure, 130 interrupted.
    """
    import typer

    from serve_eval.cli._ending import ask_and_end
    from serve_eval.storage.story_files import BISECT
    from serve_eval.workflows.bisect.bisect import bisect as search
    from serve_eval.workflows.bisect.document import make_document

    rules.check()
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    settings = settings_with(protocol, prompts, sending)
    found = _read_search(options, steps, settings)
    if output.dry_run:
        _show(found, as_json=faces.as_json)
        return
    out_dir = output.output_dir or new_folder("bisect")
    code = ask_and_end(
        "bisect",
        partial(search, found, rules, out_dir),
        lambda state, folder: make_document(state, found, folder),
        out_dir,
        BISECT.plan,
        faces,
    )
    raise typer.Exit(code)


def _read_search(
    options: OptionSearchOptions, steps: StepSearchOptions, settings: dict[str, Any]
) -> Configurations:
    """Return the configurations between two plans, or along the steps of one."""
    from serve_eval.workflows.bisect.configurations import between_plans, list_changes

    if steps.plan is not None and options.good is None and options.bad is None:
        if options.keep or options.together:
            raise PlanError("bisect.keep and bisect.together are for --good and --bad")
        return _read_steps(steps, settings)
    if options.good is None or options.bad is None or steps.plan is not None:
        raise PlanError(
            "give --good and --bad, or --plan with --steps",
            hint="For example: serve-eval bisect --good A.yaml --bad B.yaml --tasks gsm8k",
        )
    if steps.steps is not None or steps.steps_file is not None:
        raise PlanError("--steps and bisect.steps_file are for --plan")
    good, bad = (
        resolve_side(str(_file(path)), settings)[0].plan for path in (options.good, options.bad)
    )
    keep = [name for text in options.keep or () for name in _split(text)]
    groups = [_split(text) for text in options.together or ()]
    return between_plans(good, list_changes(good, bad, keep=keep, together=groups))


def _read_steps(steps: StepSearchOptions, settings: dict[str, Any]) -> Configurations:
    from serve_eval import yaml_source
    from serve_eval.workflows.bisect.configurations import PLACEHOLDER, along_steps, fill_in

    assert steps.plan is not None
    if (steps.steps is None) == (steps.steps_file is None):
        raise PlanError("--plan needs --steps A,B,C or --set bisect.steps_file=FILE")
    names = _split(steps.steps or "")
    if steps.steps_file is not None:
        text = yaml_source.read_text(steps.steps_file, PlanError)
        lines = [line.strip() for line in text.splitlines()]
        names = [line for line in lines if line and not line.startswith("#")]
    document = yaml_source.read(_file(steps.plan), PlanError)
    content = document.value
    if not isinstance(content, dict):
        raise PlanError(f"{steps.plan}: expected a mapping of keys such as model and tasks")
    if fill_in(content, "") == content:
        raise PlanError(
            f"{steps.plan}: {PLACEHOLDER} is nowhere in it, so all steps would be the same",
            hint=f'For example: image: "registry/server:{PLACEHOLDER}"',
        )
    content = {key: one for key, one in content.items() if key not in ("verdict", "early_stop")}

    def line(*place: object) -> str:
        return f"{steps.plan}:{document.line(*place)}: "

    plans = [with_plan(fill_in(content, name), settings, line).plan for name in names]
    return along_steps(plans, names)


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _file(path: Path) -> Path:
    if not path.is_file():
        raise PlanError(f"{path}: there is no such plan file")
    return path


def _show(found: Configurations, *, as_json: bool) -> None:
    """Print the differences, the first steps and the expected number of starts."""
    from serve_eval.report.text import clean
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.bisect.search import preview

    shown = preview(found)
    if as_json:
        emit(pretty_json(shown.content).decode())
        return
    number = len(found.changes)
    what = "option that differs" if number == 1 else "options that differ"
    if found.space.ordered:
        what = f"step{'' if number == 1 else 's'} after the good one"
    lines = [f"{number} {what}:", *shown.lines(), "nothing was sent"]
    emit(clean("\n".join(lines) + "\n"))
