"""Print what a PASS by identity costs on the embedded model, and what damaged weights get instead.

Every row is a whole run over HTTP: `python -m tests.evaluation.measure_identity`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from serve_eval.storage.report_file import read_report

TASK = ["-t", "word_problems", "--launcher", "embedded"]
STATES = ("none", "none", "none", "int8", "int4-g32", "int4", "int3")


def main():
    """Take a reference with 60 probes, and run each state with and without them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        refs = ["--references-dir", str(root / "refs")]
        _call("references", "take", *TASK, "--probes", "60", *refs, "-o", str(root / "taken"))
        print("state     verdict           value  probe tokens  of the run  why")
        for place, state in enumerate(STATES):
            _measure(root / f"run_{place}", state, refs)


def _measure(folder, state, refs):
    damaged = ["--set", f"launcher.damage={state}"]
    _call("run", *TASK, *damaged, *refs, "--accept-identical", "-o", str(folder))
    report = read_report(folder)
    [task] = report.tasks
    found, cost = task.verdict.identity, report.cost
    value = "-" if task.result.value is None else f"{task.result.value:.1f}"
    of_run = cost.prompt_tokens + cost.generated_tokens
    print(
        f"{'sound' if state == 'none' else state:<9} {task.verdict.outcome.value:<17} {value:>5}"
        f" {found.tokens:>13,} {of_run:>11,}  {found.why}",
        flush=True,
    )


def _call(*words):
    command = [sys.executable, "-m", "serve_eval", *words]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
