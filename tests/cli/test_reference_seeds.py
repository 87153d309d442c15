"""Sampling seeds and references: a seed is a draw, and runs of one seed are one draw."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

ASKED = ["--launcher", "simulated", "--model", "org/m", "-t", "passkey_short"]
HOT = ["--set", "passkey_short.temperature=0.8"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _take(*more: str, runs: str = "3", varied: bool = True) -> str:
    words = [*ASKED, *HOT, *(["--set", "launcher.varied=true"] if varied else []), *more]
    done = serve_eval("references", "take", "--runs", runs, *words, "-o", "taken")
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def _run(folder: str, *more: str) -> tuple[int, str]:
    done = serve_eval("run", *ASKED, *HOT, "--references-dir", "my-references", "-o", folder, *more)
    return done.returncode, done.stdout + done.stderr


def _report(folder: str) -> dict[str, Any]:
    [task] = json.loads(Path(folder, "report.json").read_text())["tasks"]
    assert isinstance(task, dict)
    return task


@pytest.mark.parametrize("seeds", ["sampling_seed: [1, 2]", "protocol: [{seed: 1}, {seed: 2}]"])
def test_a_reference_without_a_seed_judges_seeded_runs_with_a_note(seeds: str) -> None:
    assert "one_draw" not in _take()
    Path("s.yaml").write_text(
        "defaults: {model: org/m, references_dir: my-references, launcher: simulated,\n"
        f"  tasks: [{{passkey_short: {{temperature: 0.8}}}}]}}\nmatrix: {{{seeds}}}\n"
    )
    dry = serve_eval("run", "s.yaml", "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "note: sampling seed 2 here and none with the reference: a seed is a draw" in dry.stdout
    done = serve_eval("run", "s.yaml", "-o", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(Path("out/suite_report.json").read_text())["rows"]
    assert [row["outcome"] for row in rows] == ["PASS", "PASS"]


def test_a_seeded_reference_refuses_another_seed_and_says_how_to_compare() -> None:
    told = _take("--set", "protocol.seed=1", runs="1")
    assert "one_draw" not in told
    for more in (["--set", "protocol.seed=2"], []):
        code, said = _run("out", *more)
        assert code == 3
        assert "seed is " in said
        offered = said.index("--allow-mismatch seed, or in a plan: allow_mismatch: [seed]")
        take = next(line for line in said.splitlines() if "references take" in line)
        assert offered < said.index(take)
        assert not re.findall("seed=|--sampling-seed", take)
    code, said = _run("out", "--set", "protocol.seed=2", "--allow-mismatch", "seed")
    assert (code, _report("out")["verdict"]["outcome"]) == (0, "PASS"), said
    assert _run("same", "--set", "protocol.seed=1")[0] == 0


def test_at_temperature_0_no_seed_refuses_a_reference() -> None:
    cold = ["--set", "passkey_short.temperature=0"]
    told = _take(*cold, "--set", "protocol.seed=1", varied=False)
    assert "one_draw" not in told
    code, said = _run("out", *cold, "--set", "protocol.seed=2")
    assert code == 0, said
    assert "at temperature 0 a seed draws nothing" in said


def test_the_command_that_takes_a_missing_reference_draws_anew() -> None:
    Path("my-references").mkdir()
    for more in (["--set", "protocol.seed=7"], ["--set", "passkey_short.seed=7"]):
        code, said = _run("out", *more)
        assert code == 3
        [take] = [line.strip() for line in said.splitlines() if "references take" in line]
        assert not re.findall("seed=|--sampling-seed", take)
        assert "passkey_short.temperature=0.8" in take


def test_runs_that_are_one_draw_are_named_before_and_after_they_are_asked() -> None:
    told = _take("--set", "protocol.seed=7")
    said = "one_draw: each of the 3 runs has sampling seed 7"
    assert told.count(said) == 2
    assert " seeds    sampling seed 7 in each of 3 runs\n" in told
    assert told.index(said) < told.index(" taken at ")
    again = serve_eval(
        "references", "register", *(f"taken/run_{k}" for k in (1, 2)), "--references-dir", "again"
    )
    assert "one_draw: each of the 2 runs has sampling seed 7" in again.stdout
    repeated = serve_eval(
        "run",
        *ASKED,
        *HOT,
        "--set",
        "protocol.seed=7",
        "--repeats",
        "2",
        "--no-reference",
        "-o",
        "r",
    )
    assert repeated.returncode == 3
    one = serve_eval("references", "register", "r", "--references-dir", "one")
    assert one.returncode == 0, one.stderr
    assert "one_draw" not in one.stdout
    assert "sampling seed 7, and the 2 repeats have seeds of their own" in one.stdout


def test_runs_of_a_server_that_repeats_its_replies_are_one_draw() -> None:
    told = _take(varied=False)
    assert "one_draw: the answers of the 3 runs to each of 110 prompts are the same text" in told


def test_collect_has_the_sampling_seed() -> None:
    _run("runs/a", "--no-reference", "--references-dir", ".", "--set", "protocol.seed=5")
    _run("runs/b", "--no-reference", "--references-dir", ".")
    done = serve_eval("runs", "table", "runs")
    rows = list(csv.DictReader(io.StringIO(done.stdout, newline="")))
    assert [row["sampling_seed"] for row in rows] == ["5", ""]


def test_a_missing_folder_of_references_has_the_command_that_makes_it() -> None:
    code, said = _run("out")
    assert code == 2
    assert "is not a folder" in said
    command = "serve-eval references take TRUSTED_HOST:8000 -t TASK --references-dir "
    assert command in said


def test_runs_with_a_seed_each_make_a_reference_without_one() -> None:
    for seed in "1223":
        folder = f"run{seed}" if not Path(f"run{seed}").exists() else "again"
        varied = ["--set", "launcher.varied=true", "--set", f"protocol.seed={seed}"]
        done = serve_eval("run", *ASKED, *HOT, "--no-reference", *varied, "-o", folder)
        assert done.returncode == 3, done.stderr
    made = serve_eval(
        "references", "register", "run1", "run2", "run3", "--references-dir", "my-references"
    )
    assert made.returncode == 0, made.stderr
    assert "the mean of 3 runs" in made.stdout
    assert " seeds    3 sampling seeds: 1, 2, 3\n" in made.stdout
    [file] = Path("my-references").glob("*.yaml")
    assert "seed: 1" not in file.read_text().replace("random_seed", "")
    code, printed = _run("judged", "--set", "protocol.seed=9", "--set", "launcher.varied=true")
    assert code == 0, printed
    refused = serve_eval(
        "references", "register", "run1", "run2", "again", "--references-dir", "others"
    )
    assert refused.returncode == 2
    assert 'seed: was "1", now "2"' in refused.stderr
