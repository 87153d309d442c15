"""Write what the repository says of a new task; `make task-pages` runs this.

It adds the golden prompts and rows in docs/tasks.md and NOTICE, and writes docs/schemas again. It
renews the columns that follow from the tasks, and prints what was wrong in them. `make golden-
prompts` writes only the golden prompts, all of them. Nothing is written if a file of a task, a
scorer or a rule has a mistake, a run would refuse a task, or something that a row needs is missing:
its line is named. Modules that import such files are imported below, so that no mistake in them is
a traceback.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.root import ROOT
from tests.tasks.mistakes import Mistake, blame, check_files


def main():
    """Add what is missing and print the files that changed, or only renew the golden prompts."""
    try:
        check_files()
        with blame("tests/tasks/made_data.py"):
            from tests.tasks import golden_prompts, task_rows
        if sys.argv[1:] == ["golden-prompts"]:
            golden_prompts.renew()
        else:
            _write(golden_prompts, task_rows)
    except Mistake as mistake:
        sys.exit(str(mistake))


def _write(golden_prompts, task_rows):
    from serve_eval.errors import ServeEvalError

    with tempfile.TemporaryDirectory() as folder:
        try:
            with blame("tests/tasks/made_data.py"):
                golden_prompts.write_made(Path(folder))
            pages, wrong = task_rows.write_pages(Path(folder))
            added = golden_prompts.add_missing(Path(folder))
        except ServeEvalError as error:
            sys.exit("\n".join(filter(None, (str(error), getattr(error, "hint", "")))))
    for one in wrong:
        print(one)
    for place, text in pages.items():
        if (ROOT / place).read_text("utf-8") != text:
            (ROOT / place).write_text(text, encoding="utf-8")
            print(f"{place}: changed")
    for one in added:
        print(f"{golden_prompts.FILE.relative_to(ROOT)}: added {one}")


if __name__ == "__main__":
    main()
