"""Tell the user whether answers of an interrupted command are kept."""

from __future__ import annotations

from pathlib import Path


def explain_kept(folder: Path, again: str) -> str:
    """Return a line with the command `again` that resumes.

    It says that answers are kept only if the folder holds some.
    """
    from serve_eval.evaluation.storage.run_folder import holds_answer

    return (
        f"Finished answers are kept. Resume with: {again}"
        if holds_answer(folder)
        else f"No answer was received yet. Try again with: {again}"
    )
