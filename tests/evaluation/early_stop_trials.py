"""Run the embedded model over HTTP with and without an early stop, and print the tokens.

Run by hand; the answers depend on the load of the machine, since they are sampled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPTS, REFERENCE_RUNS = 200, 4
STATES = {"sound": "none", "damaged (int3)": "int3"}
ROWS = [(repeats, state) for repeats in (1, 4, 16) for state in STATES]
RULE = "paired"


def run(folder: Path, *words: str) -> None:
    """Run a command of serve-eval on the task; a verdict may be any."""
    task = "word_problems"
    base = ["--launcher", "embedded", "-t", task, "--set", f"{task}.num_samples={PROMPTS}"]
    base += ["--set", f"{task}.temperature=0.8", "--references-dir", str(folder / "references")]
    command = [sys.executable, "-m", "serve_eval", *words[:1], *base, *words[1:]]
    if words[0] == "references":
        command = [sys.executable, "-m", "serve_eval", *words[:2], *base, *words[2:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def read(folder: Path) -> tuple[str, int, int]:
    """Return the outcome of a run, the answers that it has, and its tokens."""
    report = json.loads((folder / "report.json").read_text())
    task, cost = report["tasks"][0], report["cost"]
    early = task["verdict"].get("early") or {}
    asked = task["result"]["planned"] - (early.get("saved") or 0)
    return task["verdict"]["outcome"], asked, cost["prompt_tokens"] + cost["generated_tokens"]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run(folder, "references", "take", "--runs", str(REFERENCE_RUNS), "-o", f"{folder}/taken")
        print("| n x k | rule | state | whole run | tokens | early stop | tokens | share |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for repeats, state in ROWS:
            found = []
            for stop in ("--no-early-stop", "--early-stop"):
                out = folder / f"{repeats}{STATES[state]}{stop}"
                run(
                    folder,
                    "run",
                    "--repeats",
                    str(repeats),
                    "--verdict",
                    RULE,
                    stop,
                    "--set",
                    f"launcher.damage={STATES[state]}",
                    "-o",
                    str(out),
                )
                found.append(read(out))
            (whole, asked, tokens), (early, few, less) = found
            print(
                f"| {PROMPTS} x {repeats} | {RULE} | {state} | {whole}, {asked} answers"
                f" | {tokens:,} | {early}, {few} answers | {less:,} | {100 * less / tokens:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
