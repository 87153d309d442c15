"""`serve-eval bisect` as a command: its search, its dry run and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.workflows.bisect.searches import INCLUDED

PLAN = """\
model: m
tasks: [{{word_problems: {{num_samples: 40}}}}]
limits: {{order_seed: 1}}
launcher: {{name: breakable, breaks: [tp], accuracy: 1.0, damage: 0.9, served: {served}}}
"""
STEPS = """\
model: m
tasks: [{word_problems: {num_samples: 40}}]
limits: {order_seed: 1}
launcher: {name: breakable, step: "v{step}", bad_steps: [v3], accuracy: 1.0, damage: 0.9}
"""
INCLUDE = ("--set", f"include_path={INCLUDED}")


@pytest.fixture
def plans(tmp_path: Path) -> tuple[str, Path, str, Path]:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(PLAN.format(served="{tp: 0, graphs: false, overlap: false}"))
    bad.write_text(PLAN.format(served="{tp: 1, graphs: true, overlap: true}"))
    return "--good", good, "--bad", bad


def test_the_dry_run_shows_the_first_steps_and_the_expected_starts(
    plans: tuple[str, Path, str, Path],
) -> None:
    done = serve_eval("bisect", *plans, *INCLUDE, "--dry-run")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "3 options that differ:",
        "  served.tp: 0 -> 1",
        "  served.graphs: false -> true",
        "  served.overlap: false -> true",
    ]
    assert lines[4] == "step 1: bad"
    assert lines[5].startswith("step 2, if step 1 is worse: ")
    assert lines[-2].startswith("server starts: ")
    told = serve_eval("bisect", *plans, *INCLUDE, "--dry-run", "--json").stdout
    content = json.loads(told)
    assert [len(content["changes"]), content["steps"][0]] == [3, "bad"]
    assert 4 < content["starts"]["mean"] < content["starts"]["most"] + 1
    kept = (
        "--set",
        "bisect.keep=served.tp",
        "--set",
        "bisect.together=served.graphs,served.overlap",
        "--dry-run",
    )
    done = serve_eval("bisect", *plans, *INCLUDE, *kept)
    assert done.stdout.splitlines()[0] == "1 option that differs:"
    assert "  served.graphs+served.overlap: false, false -> true, true" in done.stdout


def test_a_step_is_named_in_text_and_in_json(tmp_path: Path) -> None:
    plan, steps, out = tmp_path / "plan.yaml", tmp_path / "steps", tmp_path / "out"
    plan.write_text(STEPS)
    steps.write_text("# nightly builds\n1\n2\n\n3\n")
    done = serve_eval(
        "bisect", "--plan", plan, "--set", f"bisect.steps_file={steps}", *INCLUDE, "-o", out
    )
    assert done.returncode == 1, done.stderr
    assert "culprit: 3, the first bad step; 2 is the last good one" in done.stdout
    again = serve_eval("bisect", "--plan", plan, "--steps", "1,2,3", *INCLUDE, "-o", out, "--json")
    content = json.loads(again.stdout)["result"]
    assert (again.returncode, content["exit_code"], content["ending"]) == (1, 1, "found")
    assert content["suspects"][0]["members"] == ["3"]
    assert all((out / name).exists() for name in ("report.html", "junit.xml", "summary.md"))
    [command] = json.loads(again.stdout)["commands"]
    following = serve_eval(*shlex.split(command)[1:])
    assert (following.returncode, "FAIL" in following.stdout) == (0, True), following.stderr
    other = serve_eval("bisect", "--plan", plan, "--steps", "1,2,4", *INCLUDE, "-o", out)
    assert (other.returncode, "holds another bisection" in other.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --good and --bad, or --plan with --steps"),
        (("--good", "GOOD"), "give --good and --bad, or --plan with --steps"),
        (("--good", "GOOD", "--bad", "none.yaml"), "none.yaml: there is no such plan file"),
        (
            ("--good", "GOOD", "--bad", "GOOD", "--steps", "a,b"),
            "--steps and bisect.steps_file are",
        ),
        (("--plan", "GOOD", "--steps", "a,b"), "{step} is nowhere in it"),
        (("--plan", "GOOD"), "--plan needs --steps A,B,C or --set bisect.steps_file=FILE"),
        (
            ("--plan", "GOOD", "--steps", "a,b", "--set", "bisect.keep=tp"),
            "are for --good and --bad",
        ),
        (("--margin", "0"), "--margin must be a positive number"),
        (("--budget-starts", "1"), "--budget-starts must be 2 or more"),
        (("--set", "bisect.budget_gpu_hours=-1"), "bisect.budget_gpu_hours must be above 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    arguments: tuple[str, ...], said: str, plans: tuple[str, Path, str, Path]
) -> None:
    words = [plans[1] if word == "GOOD" else word for word in arguments]
    done = serve_eval("bisect", *words, *INCLUDE)
    assert done.returncode == 2
    assert said in done.stderr
