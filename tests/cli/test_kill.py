"""Test that a run killed while it asks or judges ends with the right numbers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve_eval.schema import DataRoots
from serve_eval.schema.media import prompt_sha256, uniform
from serve_eval.storage.journal import read
from serve_eval.storage.scores import read_scores
from serve_eval.tasks.gsm8k import task
from tests.cli.command import environment, serve_eval

KILLS = 35
QUESTIONS = 1319


@pytest.fixture
def endpoint(tmp_path: Path, data_root: Path) -> Iterator[str]:
    """Yield the URL of a simulator that survives the kills and always answers alike.

    Three of four answers are right.
    """
    made = task()
    with (tmp_path / "answers.jsonl").open("wb") as file:
        for sample in made.load(DataRoots(roots=(data_root,)), QUESTIONS).samples:
            right, wrong = made.answers(sample)
            entry = {"sha256": prompt_sha256(sample.prompt), "right": right, "wrong": wrong}
            file.write(
                msgspec.json.encode({**entry, "probability": float(uniform(sample.id) < 0.75)})
                + b"\n"
            )
    ready = tmp_path / "ready"
    command = [
        sys.executable,
        "-m",
        "serve_eval.launchers._simulated",
        "--answers",
        str(tmp_path / "answers.jsonl"),
    ]
    command += ["--ready-file", str(ready), "--latency-s", "0.12", "--latency-jitter-s", "0.2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 30
            while not ready.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield ready.read_text().strip()
        finally:
            process.terminate()


def _command(data_root: Path, url: str, out: Path) -> list[str]:
    flags = [
        "--base-url",
        url,
        "--model",
        "simulated",
        "--tasks",
        "gsm8k",
        "--dataset-root",
        str(data_root),
    ]
    flags += [
        "--no-reference",
        "--concurrency",
        "8",
        "--set",
        "limits.order=random",
        "--set",
        "limits.stream=true",
    ]
    return [sys.executable, "-m", "serve_eval", "run", *flags, "-o", str(out)]


def _result(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "report.json").read_text())["tasks"][0]["result"]
    return result


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.slow
def test_a_run_killed_at_thirty_random_points_ends_as_one_that_was_not(
    tmp_path: Path, data_root: Path, endpoint: str
) -> None:
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("SERVE_EVAL_", "OPENAI_", "LLM_MODELS", "TRTLLM"))
    }
    rng, out, had = random.Random(0), tmp_path / "killed", 0
    command = _command(data_root, endpoint, out)
    for _ in range(KILLS):
        with subprocess.Popen(
            command, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(rng.uniform(0.05, 1.0))
            # Counted in answers, so that a slow machine also has new ones before some of the kills.
            more = rng.choice((0, rng.randint(1, 20)))
            while process.poll() is None and _lines(out / "samples/gsm8k.jsonl") < had + more:
                time.sleep(0.005)
            assert process.poll() is None, "the run ended before it was killed: ask more questions"
            process.kill()
        now = _lines(out / "samples/gsm8k.jsonl")
        assert now >= had
        had = now
    assert 100 < had < QUESTIONS
    done = subprocess.run(
        command, env=kept, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 3, done.stderr
    whole = subprocess.run(
        _command(data_root, endpoint, tmp_path / "whole"),
        env=kept,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert whole.returncode == 3
    assert _result(out) == _result(tmp_path / "whole")
    # What a kill left without a proof was withdrawn and asked again: one answer of each stands.
    ids = [record.id for record in read(out / "samples/gsm8k.jsonl")]
    assert len(ids) == len(set(ids)) == QUESTIONS


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
