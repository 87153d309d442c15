"""Check that the gate fails when it must: run it on copies of this tree with a costly change each.

Run `make bench-gate-check`. Exits with 1 if the gate passes one of the changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one file: where `pattern` matches, `text` stands instead.

    `subjects` are those that the gate measures; `row` begins the name of one that must fail.
    """

    name: str
    file: str
    pattern: str
    text: str
    subjects: Sequence[str]
    row: str


_SCORE = r"(    def score\(expected: object, response: Response\) -> Score:\n)"
_PAGE = r"(    from serve_eval\.cli\._streams import say\n)(\n    def write\(\) -> None:\n)"
CHANGES = (
    Change(
        "a sleep of 50 us in a scorer",
        "serve_eval/scorers/numeric.py",
        _SCORE,
        r"\1        __import__('time').sleep(50e-6)\n",
        ("scores",),
        "a score by numeric",
    ),
    Change(
        "50 us of work in a scorer",
        "serve_eval/scorers/numeric.py",
        _SCORE,
        r"\1        end = __import__('time').perf_counter() + 50e-6\n"
        r"        while __import__('time').perf_counter() < end: pass\n",
        ("scores",),
        "a score by numeric",
    ),
    Change(
        "a sleep of 50 us in the scorer of a whole run",
        "serve_eval/scorers/numeric.py",
        r'(def extract_flexible\(.*\n    """.*"""\n)',
        r"\1    __import__('time').sleep(50e-6)\n",
        ("sums small", "sums large"),
        "sleeps of 1000 further samples",
    ),
    Change(
        "a second reading of the scores",
        "serve_eval/cli/_ending.py",
        _PAGE,
        r"\1    [file.read_bytes() for file in (out_dir / 'scores').iterdir()]\n\2",
        ("counted small", "counted large"),
        "readings of scores",
    ),
    Change(
        "the page's bound removed",
        "serve_eval/schema/plan.py",
        r"(page_samples: int = )5_?000\b",
        r"\g<1>10**9",
        ("sums small", "sums large"),
        "size of the page",
    ),
)


def copy(folder: Path) -> None:
    """Copy the files of this tree that git knows or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in names.decode().split("\0"):
        source = ROOT / name
        if name.split("/")[0] in ("bench", "launchers", "references", "serve_eval"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                shutil.copy2(source, folder / name, follow_symlinks=False)


def notices(change: Change) -> str | None:
    """Return why the gate did not notice a change, None if it did."""
    with tempfile.TemporaryDirectory(prefix="serve-eval-changed-") as made:
        folder = Path(made)
        copy(folder)
        file = folder / change.file
        changed, count = re.subn(change.pattern, change.text, file.read_text("utf-8"), count=1)
        if not count:
            return f"{change.file} has no place for it: adapt bench/gate_check.py"
        file.write_text(changed, "utf-8")
        command = [sys.executable, str(folder / "bench/gate.py"), "--only"]
        done = subprocess.run(
            [*command, ",".join(change.subjects)],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"\n{change.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        lines = done.stderr.splitlines()
        if any(line.startswith(f"bench-gate: {change.row}") for line in lines):
            return None
        return f"the gate does not fail by a row {change.row!r}"


def main() -> None:
    wanted = sys.argv[1:]
    missed = {}
    for change in CHANGES:
        if (not wanted or change.name in wanted) and (why := notices(change)):
            missed[change.name] = why
    for name, why in missed.items():
        print(f"NOT NOTICED: {name}: {why}", file=sys.stderr)
    sys.exit(1 if missed else "")


if __name__ == "__main__":
    main()
