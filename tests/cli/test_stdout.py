"""Only the command's own output reaches standard output, even if other code writes there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import in_a_process

NOISE = '''"""Writes to standard output by every way there is."""

import ctypes
import os
import subprocess

def noise(where):
    print("noise by print,", where)
    os.write(1, f"noise by a descriptor, {where}\\n".encode())
    ctypes.CDLL(None).puts(f"noise by C, {where}".encode())  # C buffers this until the end
    subprocess.run(["echo", f"noise by a child, {where}"], check=True)
'''
TASK = '''"""Writes to standard output wherever it is called."""

from __future__ import annotations

from serve_eval.schema import Aggregation, DataRoots, Dataset, Hypothesis, Metric, Outcome
from serve_eval.schema import Response, Sample
from serve_eval.schema import SamplingParams, Score, Task

from ._noise import noise

noise("import")


def of(scored):
    noise("aggregation")
    return sum(score.value for _, score in scored) / 3


def task() -> Task:
    noise("task")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        noise("load")
        samples = [Sample(id=str(i), prompt=f"Town {i} is", target=f"town{i}") for i in range(3)]
        return Dataset(samples=samples, files=(), total=3)

    def score(sample: Sample, response: Response) -> Score:
        noise("score")
        right = response.text.strip() == sample.target
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)

    return Task(
        name="loud",
        version=1,
        reference_file="loud",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=3),
        sampling=SamplingParams(max_tokens=8),
        protocol={},
        load=load,
        score=score,
        answers=lambda sample: (sample.target, "nowhere"),
        aggregation=Aggregation(name="loud mean", of=of),
    )
'''


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code/tasks"
    folder.mkdir(parents=True)
    (folder / "_noise.py").write_text(NOISE)
    (folder / "loud.py").write_text(TASK)
    return folder.parent


def _flags(code: Path) -> list[str | Path]:
    asked = ["--launcher", "simulated", "--model", "m", "--tasks", "loud", "--no-reference"]
    return [*asked, "--include-path", code]


def _parsed(*arguments: str | Path, codes: tuple[int, ...] = (0, 3)) -> Any:
    done = in_a_process(*arguments)
    assert done.returncode in codes, done.stderr
    for way in ("print", "a descriptor", "C", "a child"):
        assert f"noise by {way}" in done.stderr, "the output of other code must not be lost"
    assert "noise by" not in done.stdout
    return json.loads(done.stdout)


def test_a_task_that_writes_to_standard_output_leaves_json_what_it_is(code: Path) -> None:
    told = _parsed("run", *_flags(code), "--dry-run", "--json")
    assert [task["task"] for task in told["tasks"]] == ["loud"]


@pytest.mark.slow
def test_no_command_mixes_its_output_with_that_of_others(code: Path, tmp_path: Path) -> None:
    out, include = tmp_path / "out", ("--include-path", code)
    for command in (
        ("run", *_flags(code), "-o", out),
        ("run", "--resume", out, *include),
        ("judge", out, *include),
    ):
        [task] = _parsed(*command, "--json")["result"]["tasks"]
        assert task["result"]["scored"] == 3
    assert (
        _parsed("judge", "--rescore", out, *include, "--json")["result"]["tasks"][0]["answered"]
        == 3
    )
    plan = {
        "model": "m",
        "launcher": "simulated",
        "tasks": ["loud"],
        "no_reference": True,
        "include_path": [str(code)],
    }
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(plan))
    compared = (
        "compare",
        tmp_path / "a.yaml",
        tmp_path / "b.yaml",
        "-o",
        tmp_path / "both",
        "--json",
    )
    assert _parsed(*compared, codes=(0, 1, 3))["result"]["tasks"]
    (tmp_path / "suite.yaml").write_text(json.dumps({"plans": [{"name": "one", **plan}]}))
    suite = ("run", tmp_path / "suite.yaml", "-o", tmp_path / "suite")
    assert _parsed(*suite, "--json")["result"]["rows"]
    listed = in_a_process("data", "list", "tasks", *include)
    assert "  loud" in listed.stdout
    assert "noise by" not in listed.stdout
    files = _parsed("runs", "export", out, *include, "-o", tmp_path / "exported", "--json")
    assert all(Path(one["file"]).is_file() for one in files["result"]["files"])


@pytest.mark.slow
def test_prompts_that_are_dumped_to_standard_output_get_there(code: Path) -> None:
    done = in_a_process("run", *_flags(code), "--dump-prompts", "/dev/stdout")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [
        "0",
        "1",
        "2",
    ], done.stderr


@pytest.mark.slow
def test_help_still_goes_to_standard_output() -> None:
    done = in_a_process("references", "register", "--help")
    assert "--include-path" in done.stdout
    assert done.stderr == ""


def test_a_program_that_is_started_finds_its_standard_streams_open() -> None:
    """The caller may have closed its own."""
    code = (
        "import subprocess; from serve_eval.cli._streams import prepare_streams; prepare_streams();"
        " subprocess.run('cat && echo a && echo b >&2', shell=True, check=True)"
    )
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code],
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
