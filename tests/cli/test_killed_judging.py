"""A finished run that is judged or resumed, and killed meanwhile, stays as it was or is as new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve_eval.storage.records.scores import read_scores
from tests.cli.command import environment, serve_eval

SAMPLES = 4000
TASK = "word_problems"


@pytest.fixture
def run(tmp_path: Path, simulated_here: None) -> Path:
    """Return a finished run whose scores take a while to compute again."""
    done = serve_eval(
        *("run", "--launcher", "simulated", "--set", "launcher.accuracy=0.7", "--no-reference"),
        *("-t", TASK, "--set", f"{TASK}.num_samples={SAMPLES}", "--concurrency", "64"),
        *("-o", tmp_path / "out"),
    )
    assert done.returncode == 3, done.stderr  # it has no reference
    return tmp_path / "out"


def _kill_while_scoring(command: list[str], run: Path, share: float) -> bool:
    """Kill a command once it has written this share of the scores. Return True if it was in time.

    It is killed whether it writes the file itself or another one beside it.
    """
    file = run / "scores" / f"{TASK}.jsonl"
    whole = file.stat()
    wanted = int(share * whole.st_size)
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", *command],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            time.sleep(0.0002)
            for place in file.parent.iterdir():
                found = place.stat() if place.exists() else whole
                new = found.st_ino != whole.st_ino or found.st_size < whole.st_size
                if new and found.st_size >= wanted:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    return True
    return False


def _read(run: Path) -> tuple[float, dict[str, object], list[str]]:
    """Return the report's value, the scores on file, and what the readers of the folder print."""
    [task] = json.loads((run / "report.json").read_text())["tasks"]
    commands = (("show", run, "--wrong", "--all", "--brief"), ("diagnose", run))
    said = [serve_eval(*command).stdout for command in commands]
    return task["result"]["value"], dict(read_scores(run, TASK)), said


def _kill_again_and_again(run: Path, kills: int) -> None:
    before, killed = _read(run), 0
    value, scores, _ = before
    assert len(scores) == SAMPLES
    for i in range(kills):
        command = (["judge", str(run)], ["run", "--resume", str(run)])[i % 2]
        killed += _kill_while_scoring(command, run, i / kills)
        assert dict(read_scores(run, TASK)) == scores
    assert killed > 0
    assert _read(run) == before
    again = serve_eval("judge", run, "--json")
    assert json.loads(again.stdout)["result"]["tasks"][0]["result"]["value"] == value
    assert _read(run) == before
    assert not list((run / "scores").glob("*.partial"))


def test_a_few_kills_while_a_run_is_judged_again_change_nothing(run: Path) -> None:
    _kill_again_and_again(run, 2)


@pytest.mark.slow
def test_many_kills_while_a_run_is_judged_again_change_nothing(run: Path) -> None:
    _kill_again_and_again(run, 20)


def test_answers_that_are_asked_again_never_stand_beside_their_old_report(
    tmp_path: Path, simulated_here: None
) -> None:
    """A kill right after the old answers were put aside leaves a run without a report."""
    from serve_eval.storage.archive import archive
    from serve_eval.storage.file_names import samples_file

    out = tmp_path / "out"
    flags = ("--launcher", "simulated", "--no-reference", "-t", TASK)
    serve_eval("run", *flags, "--set", f"{TASK}.num_samples=5", "-o", out)
    assert (out / "report.json").exists()
    archive(out, "then", samples_file(out, TASK), lambda sample: True)
    assert not (out / "report.json").exists()
