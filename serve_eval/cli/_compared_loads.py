"""Run `serve-eval compare` with several numbers of requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.cli._common_options import FaceOptions
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
    faces: FaceOptions,
) -> int:
    """Compare at each load, with progress on stderr. Return the exit code."""
    from serve_eval.cli._ending import ask_in_folder, end
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._streams import say
    from serve_eval.storage.story_files import COMPARE
    from serve_eval.workflows.compare.at_loads import compare_at_loads, make_load_document

    say(f"serve-eval compare: folder {out_dir}")
    story = compare_at_loads(
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
    found = ask_in_folder(story, out_dir, f"*/{COMPARE.plan}")
    return end(make_load_document(found, out_dir), faces, folder=out_dir)
