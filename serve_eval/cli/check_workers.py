"""Run `check workers`: ask each worker of an endpoint, and each pair, a run's prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from serve_eval.cli._ci_files import check_asked
from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import LATEST, IncludePath, TrustPlan, folders_of, name_run
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting


@freeze
class ChosenOptions:
    """Choose the prompts, and whether pairs of workers are asked too."""

    title: ClassVar[str] = "Prompts"
    command: ClassVar[str] = "workers"
    pairs: Annotated[
        bool, Setting("Also ask each pair of workers (default true).", metavar="BOOL", flag=False)
    ] = True
    seed: Annotated[
        int | None,
        Setting("Seed of the choice (default: that of the run).", metavar="N", flag=False),
    ] = None
    settings: Annotated[
        list[str] | None,
        Setting(
            "Set workers.pairs or workers.seed: workers.pairs=false.",
            flags=("--set",),
            metavar="workers.OPTION=VALUE",
        ),
    ] = None


@command()
def check_workers(
    faces: PageFaceOptions,
    chosen: ChosenOptions,
    run: Annotated[
        Path,
        name_run("A run folder, finished or not, or that of a comparison: its B (default latest)."),
    ] = LATEST,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="ROLE=URL",
            help=(
                "context=URL, generation=URL, or the URL of one of several complete"
                " servers. Repeatable."
            ),
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option("--samples", metavar="N", help="Prompts of the run to ask, chosen at random."),
    ] = 50,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Prompts in flight.")] = 4,
    auth_key_env: Annotated[
        str | None,
        typer.Option(
            "--auth-key-env",
            metavar="NAME",
            help=(
                "Variable with the internal_request_auth_key of a trtllm-serve deployment that"
                " serve-eval did not start; signs the requests to pairs."
            ),
        ),
    ] = None,
    include_path: IncludePath = None,
    trust_plan: TrustPlan = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the workers and the cost; send no prompts.")
    ] = False,
) -> None:
    """Find a faulty worker: ask each worker of an endpoint, and each pair, a run's prompts.

    The workers are those that the run's launcher started and that still run (--keep-servers), those
    registered with the orchestrator, those that answered the run, and those of --worker. A worker
    that takes more than twice as long as the others causes a warning, not a failure.

    Exit codes: 0 no worker is worse than the others, 1 a worker is worse, 2 usage, 3 the run's data
    has changed, 4 endpoint or infrastructure, 5 no answers, or most of them cut within the model's
    thoughts, 130 interrupted.
    """
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ending import end
    from serve_eval.cli._progress import show_progress
    from serve_eval.cli._streams import emit, say
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.trust import to_follow
    from serve_eval.storage.story_results import make_faces_folder
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.attribute import attribute, prepare_asking
    from serve_eval.workflows.attribute import worker as named_worker
    from serve_eval.workflows.attribute.asking import find_side
    from serve_eval.workflows.attribute.document import make_document

    if chosen.settings:
        raise PlanError(f"--set {chosen.settings[0]}: it sets workers.pairs or workers.seed")
    if samples < 1 or concurrency < 1:
        raise PlanError("--samples and --concurrency must be 1 or more")
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    run = find_side(run)
    settings = {"include_path": folders_of(include_path)}
    plan = to_follow(run, settings, trust_plan=trust_plan, endpoint=True)
    given = [named_worker(text) for text in worker or ()]
    try:
        asking = run_async(
            prepare_asking(
                run,
                plan,
                given=given,
                samples=samples,
                with_pairs=chosen.pairs,
                seed=chosen.seed,
                auth_key_env=auth_key_env,
            )
        )
        if dry_run:
            emit(
                "".join(f"{one.role} {one.url}\n" for one in asking.workers)
                + f"{asking.cost()}\nnothing was sent\n"
            )
            return
        say(f"serve-eval check workers: {run}", asking.cost())
        found = run_async(attribute(run, asking, at_a_time=concurrency, progress=show_progress()))
    except Interrupted:
        say("Interrupted; nothing was saved")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(end(make_document(found, run), faces, folder=make_faces_folder(run)))
