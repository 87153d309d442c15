"""Run `serve-eval compare` with several numbers of requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from serve_eval.workflows.compare.compare import CompareRules, CompareSide


def compare_loads(
    sides: tuple[CompareSide, CompareSide],
    rules: CompareRules,
    out_dir: Path,
    loads: Sequence[int],
    *,
    show_flips: int,
    one_after_the_other: bool,
    strict: bool,
    as_json: bool,
    notify_text: Path | None = None,
) -> int:
    """Compare at each load, with progress on stderr. Return the exit code."""
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ci_files import save_ci_files
    from serve_eval.cli._kept import explain_kept
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._red_results import tell_old_answers
    from serve_eval.cli._streams import draw, emit, say
    from serve_eval.evaluation.steps.nothing_asked import describe_old_answers
    from serve_eval.evaluation.storage.file_names import LOAD_COMPARISON
    from serve_eval.evaluation.storage.private_files import read_written_text
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.compare.at_loads import compare_at_loads
    from serve_eval.workflows.compare.at_loads_ci import describe_load_comparison
    from serve_eval.workflows.compare.at_loads_text import render_loads

    say(f"serve-eval compare: folder {out_dir}")
    try:
        found = run_async(
            compare_at_loads(
                *sides,
                rules,
                out_dir,
                loads,
                show_flips=show_flips,
                one_after_the_other=one_after_the_other,
                strict=strict,
                progress=progress(PatientConsole(stderr=True, highlight=False, emoji=False)),
                notify=say,
            )
        )
    except Interrupted:
        say(explain_kept(out_dir, f"the same command with -o {quote_path(out_dir)}"))
        return INTERRUPTED
    if as_json:
        emit(read_written_text(out_dir / LOAD_COMPARISON))
    else:
        tell_old_answers(describe_old_answers(found.warnings))
        draw(lambda console: render_loads(found, out_dir, console))
    return save_ci_files(
        lambda: describe_load_comparison(found),
        found.exit_code,
        folder=out_dir,
        notify_text=notify_text,
    )
