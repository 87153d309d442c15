"""Score the answers of a run again for `serve-eval judge`, and show the changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.cli._include import folders_of

if TYPE_CHECKING:
    from serve_eval.cli._common_options import FaceOptions


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
    from serve_eval.errors import PlanError
    from serve_eval.plugins.registry import name_folders
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.verdicts.exit_code import NOTHING_SCORED, PASS
    from serve_eval.workflows.rescore.document import make_document
    from serve_eval.workflows.rescore.rescore import rescore as again

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
