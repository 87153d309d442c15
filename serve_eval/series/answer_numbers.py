"""Count the answers of a run that has no report."""

from __future__ import annotations

from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.run_folder import read_fingerprints


def count_answers(run: Path) -> list[tuple[str, int, int | None]]:
    """Return each task with the number of its answers and of its samples, if that is known.

    A task that was not begun has 0. Raises OSError or RunFolderError for files that cannot be read.
    """
    found = []
    for name, printed in read_fingerprints(run).items():
        file = samples_file(run, name)
        records = journal.read(file) if file.exists() else ()
        answered = {one.id for one in records if one.response}
        planned = printed.get("samples", "").partition(" ")[0]
        found.append((name, len(answered), int(planned) if planned.isdecimal() else None))
    return found


def say_answers(run: Path) -> str:
    """Return how many answers a run has: "64 of 310 answers"; "" if none."""
    try:
        counts = count_answers(run)
    except (OSError, RunFolderError):
        return ""
    answered = sum(n for _, n, _ in counts)
    planned = sum(n or 0 for _, _, n in counts)
    return f"{answered} of {planned} answers" if answered else ""
