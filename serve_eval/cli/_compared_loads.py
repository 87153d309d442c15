"""Run `serve-eval compare` with several numbers of requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.workflows.compare.compare import CompareRules, CompareSide

HIGHEST = 65536


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,4,16, in ascending order. Raises PlanError."""
    from serve_eval.errors import PlanError

    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1 or found[-1] > HIGHEST:
        raise PlanError(
            f"--concurrency {text}: expected numbers from 1 to {HIGHEST}",
            hint="Such as --concurrency 64, or --concurrency 1,4,16.",
        )
    return found


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
) -> int:
    """Compare at each load, with progress on stderr. Return the exit code."""
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._kept import explain_kept
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._streams import draw, emit, say
    from serve_eval.evaluation.storage.file_names import LOAD_COMPARISON
    from serve_eval.evaluation.storage.private_files import read_written_text
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.compare.at_loads import compare_at_loads
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
        say(explain_kept(out_dir, f"the same command with -o {out_dir}"))
        return INTERRUPTED
    if as_json:
        emit(read_written_text(out_dir / LOAD_COMPARISON))
    else:
        draw(lambda console: render_loads(found, out_dir, console))
    return found.exit_code
