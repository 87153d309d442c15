"""Run `serve-eval runs merge`: join the shards of a run, and judge them as one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from serve_eval.cli._common_options import FaceOptions, Strict
from serve_eval.cli._options import command, settings_of
from serve_eval.cli._run_folder import folders_of
from serve_eval.cli._sides import inherit_variables
from serve_eval.frozen import freeze
from serve_eval.plan.shared_options import (
    AllowCodeExecution,
    DatasetRoot,
    IncludePath,
    ReferencesDir,
)
from serve_eval.plugins.setting import Setting

EXAMPLES = (
    (
        "Join what serve-eval run PLAN.yaml --shard K/4 -o shards/K asked:",
        "serve-eval runs merge shards/1 shards/2 shards/3 shards/4",
    ),
    (
        "Join them where the data is in another folder:",
        "serve-eval runs merge shards/1 shards/2 --dataset-root DIR -o whole",
    ),
    ("Print the report of the whole as JSON:", "serve-eval runs merge shards/1 shards/2 --json"),
)


@freeze
class HereOptions:
    """Say where data and references are, if they were elsewhere for the shards."""

    title: ClassVar[str] = "Data and references"
    dataset_root: DatasetRoot = None
    references_dir: ReferencesDir = None
    allow_code_execution: AllowCodeExecution = None


@freeze
class MergedOptions:
    """Choose the code to load and the output."""

    title: ClassVar[str] = "Code and output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "New run folder for the whole (default outputs/<time>_<model>).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    include_path: IncludePath = None
    strict: Strict = False


@command(examples=EXAMPLES)
def runs_merge(
    shards: Annotated[
        list[Path],
        typer.Argument(metavar="SHARD...", help="The run folders of all shards, in any order."),
    ],
    here: HereOptions,
    output: MergedOptions,
    faces: FaceOptions,
) -> None:
    """Join the shards of a run in a new run folder, and judge them as one run.

    Every sample must be there once. Shards that are missing, given twice, or of other data or
    another protocol are refused, with what differs. The result is that of one run over all samples.

    Exit codes: the same as for `serve-eval run`.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import RedResult, end, fail_undecided
    from serve_eval.cli._run_plan import new_folder
    from serve_eval.cli._streams import say
    from serve_eval.evaluation.trust import adopt_code
    from serve_eval.plan.plan_file import to_file
    from serve_eval.plan.resolve import resolve
    from serve_eval.report.run.document import make_run_document
    from serve_eval.workflows.merge import merge, plan_of_whole, read_shards

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    found = read_shards(shards)
    plan = adopt_code(plan_of_whole(found), folders_of(output.include_path))
    plan = resolve(to_file(plan), settings_of(here), inherit_variables()).plan
    out_dir = output.output_dir or new_folder(plan)
    say(f"serve-eval: {len(found)} shards, run folder {out_dir}")
    report = merge(found, plan, out_dir, strict=output.strict)
    red = RedResult(out_dir, report.exit_code, report.plan.include_path)
    document = make_run_document(report, out_dir, red.leads.causes, red.leads.places)
    code = end(document, faces, folder=out_dir)
    raise typer.Exit(fail_undecided(report, code, strict=output.strict))
