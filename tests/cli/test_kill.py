"""A run that is killed again and again ends with the numbers of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
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
from serve_eval.tasks.gsm8k import task

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
