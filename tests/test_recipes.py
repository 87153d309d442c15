"""Run each recipe of docs/recipes.md as its page shows it.

The files of a recipe are written, and its commands are run in order. The problems of the embedded
model take the place of gsm8k, whose data are not here; a rehearsal takes that of a GPU, and an
embedded model on this machine that of each address.
"""

import re
from typing import NamedTuple

import pytest

from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from tests.cli.command import serve_eval
from tests.pytest_plugin.run_pytest import run_pytest
from tests.root import ROOT

PAGE = (ROOT / "docs/recipes.md").read_text()
RECIPES = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
FILE = re.compile(r"^```(?:yaml|python)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```\n(\$ .*?)^```", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\$ ", re.MULTILINE)
MOST_WORDS = 300
EVERYWHERE = {"gsm8k": "word_problems", "dataset_root: DATA\n": ""}
REHEARSE = "--rehearse --limit 20"
DAMAGE = "--set launcher.damage=int3"


class Trial(NamedTuple):
    """One recipe: each command's exit code and further words, and the texts to replace in it."""

    steps: tuple[tuple[int, str], ...]
    replace: dict[str, str] = {}
    servers: dict[str, str] = {}


TRIALS = {
    "Compare two images every night": Trial(
        ((0, REHEARSE),), {"PASS   gsm8k": "INCONCLUSIVE   gsm8k", "--margin 2": "--margin 30"}
    ),
    "Find the bad worker": Trial(
        ((3, ""), (1, "")),
        servers={"router:8000": "", "node1:8001": "", "node2:8002": "", "node3:8003": DAMAGE},
    ),
    "Test disaggregated 1 + 1 on a cluster": Trial(
        ((0, ""), (0, ""), (0, REHEARSE), (0, REHEARSE), (0, "")),
        {
            "sbatch --wait jobs/a/job.sbatch": "serve-eval run aggregated.yaml -o A",
            "sbatch --wait jobs/b/job.sbatch": "serve-eval run disaggregated.yaml -o B",
            "PASS   gsm8k": "INCONCLUSIVE   gsm8k",
        },
    ),
    "Rehearse without a GPU": Trial(((0, ""), (0, "--no-reference"))),
    "Take a reference and judge every night": Trial(
        ((0, ""), (0, ""), (0, "")), {"my-org/my-model": "embedded"}, {"http://host:8000": ""}
    ),
    "Evaluate a thinking model": Trial(
        ((0, REHEARSE),),
        {"base_url: http://host:8000": "launcher: {name: trtllm, gpus: [0]}", "aime": "gsm8k"},
    ),
    "Move a TensorRT-LLM test": Trial(((0, ""), (1, ""))),
    "It is red, what now?": Trial(
        ((1, ""), (0, ""), (0, "")),
        {"run plan.yaml": f"run --launcher embedded --tasks word_problems {DAMAGE}"},
    ),
}


def test_there_are_eight_recipes_each_with_a_trial():
    assert len(RECIPES) == 8
    assert list(RECIPES) == list(TRIALS)


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_is_short(title: str):
    assert len(f"{title} {RECIPES[title]}".split()) <= MOST_WORDS


@pytest.mark.slow
@pytest.mark.parametrize("title", TRIALS)
def test_a_recipe_prints_what_it_shows(title: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "80"}
    trial, text = TRIALS[title], RECIPES[title]
    assert [old for old in trial.replace if old not in text] == []
    try:
        started = {address: _serve(damage, state) for address, damage in trial.servers.items()}
        for old, new in {**trial.replace, **started, **EVERYWHERE}.items():
            text = text.replace(old, new)
        for name, content in FILE.findall(text):
            (tmp_path / name).write_text(content)
        steps = STEP.split("".join(SHOWN.findall(text)))[1:]
        for step, (code, more) in zip(steps, trial.steps, strict=True):
            command, *shown = step.rstrip().splitlines()
            tool, *words = f"{command} {more}".split()
            run = run_pytest if tool == "pytest" else serve_eval
            folder = (tmp_path,) if tool == "pytest" else ()
            done = run(*folder, *words, **state)
            assert done.returncode == code, (command, done.stdout, done.stderr)
            printed = (done.stdout + done.stderr).splitlines()
            for line in shown:
                begins = line.removesuffix("...").rstrip()
                assert any(one.startswith(begins) for one in printed), (line, printed)
    finally:
        serve_eval("serve --stop all", **state)


def _serve(damage, state):
    """Start an embedded model in place of a server of the page, and return its address."""
    [port] = free_ports(LOOPBACK, None)
    serve_eval(f"serve embedded --detach --set launcher.port={port} {damage}", exits=0, **state)
    return f"{LOOPBACK}:{port}"
