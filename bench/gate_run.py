"""Run the command line and note what the run does, for bench/gate.py.

`python bench/gate_run.py page NOTES run ...` notes the CPU seconds of the page and the peak memory
of the process itself, since that of the process which draws varies by 5 MB. `counted` notes the
calls of functions, and how often the run opens its own files for reading. NOTES is the file of the
notes, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from cProfile import Profile
from pathlib import Path
from typing import Any

from serve_eval.cli import main


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _peak_mb() -> float:
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def note_page(notes: Path) -> None:
    """Note the CPU seconds of the page; without the function that writes it, note nothing."""
    from serve_eval.cli import _ending

    save = getattr(_ending, "save_document_page", None)
    if save is None:
        return

    def measured(*given: Any, **named: Any) -> None:
        began = _cpu_s()
        save(*given, **named)
        told = {"page_cpu_s": _cpu_s() - began, "peak_mb": _peak_mb()}
        notes.write_text(json.dumps(told), "ascii")

    _ending.save_document_page = measured


def count_opened(run: Path) -> Counter[str]:
    """Count from now on how often files of a run are opened for reading, by folder or file."""
    opened: Counter[str] = Counter()
    prefix = f"{run}{os.sep}"

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event != "open" or not str(given[0]).startswith(prefix):
            return
        path, mode, flags = given
        if mode == "r" or (mode is None and not flags & (os.O_WRONLY | os.O_RDWR)):
            opened[Path(path).relative_to(run).parts[0]] += 1

    sys.addaudithook(hook)
    return opened


def run_counted(notes: Path) -> None:
    """Run the command line and note the counts."""
    opened = count_opened(Path(sys.argv[sys.argv.index("-o") + 1]))
    profile = Profile()
    try:
        profile.runcall(main)
    finally:
        calls = sum(entry.callcount for entry in profile.getstats())
        notes.write_text(json.dumps({"calls": calls, **opened}), "ascii")


if __name__ == "__main__":
    what, notes, sys.argv[1:] = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if what == "page":
        note_page(notes)
        main()
    else:
        run_counted(notes)
