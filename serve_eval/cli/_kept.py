"""What is said of the answers that a command had when it ended early."""

from __future__ import annotations

from pathlib import Path


def explain_kept(folder: Path, again: str) -> str:
    """Return a line on how to go on by `again`: it says that answers are kept where the folder
    holds any.
    """
    from serve_eval.evaluation.storage.run_folder import holds_answer

    return (
        f"Answers so far are kept; go on with: {again}"
        if holds_answer(folder)
        else f"No answer came yet; try: {again}"
    )
