"""`serve-eval judge` sets options of the rule that judges a finished run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")
ASKED = (
    "--launcher", "simulated", "-m", "org/m", "-t", "word_problems",
    "--set=word_problems.num_samples=40",
)  # fmt: skip


def test_options_of_the_rule_are_tried_on_a_finished_run(tmp_path: Path) -> None:
    refs = ("--references-dir", str(tmp_path / "refs"))
    taken = serve_eval("references", "take", *ASKED, "--runs", "1", *refs, "-o", tmp_path / "ref")
    assert taken.returncode == 0, taken.stderr
    run = tmp_path / "run"
    assert serve_eval("run", *ASKED, *refs, "--set=launcher.damage=0.6", "-o", run).returncode == 1
    before = (run / "report.json").read_bytes()
    found = {}
    for margin in ("10", "90"):
        done = serve_eval(
            "judge", run, *refs, "--verdict", "noninferiority",
            "--set", f"verdict.margin={margin}", "--json",
        )  # fmt: skip
        [task] = json.loads(done.stdout)["result"]["tasks"]
        found[margin] = done.returncode, task["verdict"]["outcome"]
    assert found == {"10": (1, "FAIL"), "90": (0, "PASS")}
    assert (run / "report.json").read_bytes() == before
    alias = tmp_path / "alias"
    done = serve_eval("run", *ASKED, "-m", "org/alias", "--no-reference", "-o", alias)
    assert done.returncode == 3, done.stderr
    assert serve_eval("judge", alias, *refs).returncode == 3
    done = serve_eval("judge", alias, *refs, "--set", "reference_model=org/m")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("word_problems.seed=1", "here it sets options of the rule, as in verdict.margin=2"),
        ("verdict.nothing=1", "verdict.nothing: unknown option"),
    ],
)
def test_another_option_is_a_wrong_use(text: str, told: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert serve_eval("run", *ASKED, "--no-reference", "-o", run).returncode == 3
    done = serve_eval("judge", run, "--set", text)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
