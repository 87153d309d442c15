"""Find folders in outputs/ whose command ended before its result, so that it can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.storage.copy_mark import is_unfinished_copy
from serve_eval.storage.last_answer import read_last_answer
from serve_eval.storage.latest import OUTPUTS
from serve_eval.storage.run_folder import check_unused

CONTINUED_DAYS = 3
"""Age of the last answer in days up to which a folder is continued. Servers change meanwhile."""


def list_unfinished(
    sign: str, is_finished: Callable[[Path], bool], now_s: float | None = None
) -> Iterator[tuple[Path, float]]:
    """Yield folders with answers and no result, the last answer first, with its age in seconds.

    `sign` is the file that marks a folder of the command. Skipped are folders in use, and those
    whose last answer is too old.
    """
    now_s = time.time() if now_s is None else now_s
    found = []
    for folder in OUTPUTS.iterdir() if OUTPUTS.is_dir() else ():
        if folder.is_symlink() or not (folder / sign).is_file() or is_finished(folder):
            continue
        if is_unfinished_copy(folder):
            continue
        at = read_last_answer(folder)
        if at is not None and (age_s := now_s - at) <= CONTINUED_DAYS * 86_400:
            found.append((folder, max(age_s, 0.0)))
    for folder, age_s in sorted(found, key=lambda one: one[1]):
        try:
            check_unused(folder)
        except RunFolderError:
            continue
        yield folder, age_s
