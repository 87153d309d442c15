"""Run `serve-eval references power`: compute detectable drops by sample size, and the reverse."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting
from serve_eval.workflows.power.question import PowerQuestion


@freeze
class PowerOptions(PowerQuestion):
    """Choose the question, also by --set."""

    settings: Annotated[
        list[str] | None,
        Setting(
            "Set power.sigma, alpha, beta, tests or design_effect: power.alpha=0.01. Repeatable.",
            flags=("--set",),
            metavar="power.OPTION=VALUE",
        ),
    ] = None


@command()
def references_power(faces: PageFaceOptions, asked: PowerOptions) -> None:
    """Compute the drop that n samples can detect, or the samples that a drop takes.

    Give at least one of --total, --theta, --detect and --from.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.errors import PlanError
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.power.answers import answer
    from serve_eval.workflows.power.document import make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if asked.settings:
        raise PlanError(f"--set {asked.settings[0]}: it sets power.OPTION, as in power.alpha=0.01")
    found = answer(asked)
    figures = pretty_json({"schema_version": 1, "tasks": found})
    raise typer.Exit(end(make_document(found, asked), faces, about=asked.from_run, figures=figures))
