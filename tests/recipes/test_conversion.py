"""Convert every recipe below some folders, and check each plan as a dry run does.

    python -m tests.recipes.test_conversion FOLDER...

prints, for each folder, how many recipes became plans, and why others did not.

Each recipe of docs/recipes.md runs as its page shows it, too.
"""

import copy
import os
import re
import sys
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.cli import _dry_run
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from serve_eval.plan.resolve import resolve
from serve_eval.workflows.init.recipe_plans import read_recipes, write_plan
from serve_eval.yaml_source import parse
from tests.cli.command import in_a_process, serve_eval
from tests.pytest_plugin.run_pytest import run_pytest
from tests.root import ROOT
from tests.standin.deployments import environment

FOLDERS = [Path(one) for one in os.environ.get("SERVE_EVAL_RECIPES", "").split(":") if one]


@pytest.mark.skipif(not FOLDERS, reason="SERVE_EVAL_RECIPES names no folder")
@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_each_recipe_for_trtllm_becomes_a_plan_that_a_dry_run_takes(folder):
    found = convert(folder)
    assert found.failed == {}
    assert found.plans
    assert all("recipe for" in reason for reason in found.refused), found.refused


def test_the_examples_are_counted():
    lines = list(list_lines(Path(__file__).parent / "examples"))
    assert lines[0].endswith(": 20 plans, 0 refused by a dry run")
    assert "      1 files not converted: a recipe for SGLang, which no launcher starts" in lines


EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
DOCUMENTS = {one.name: list(yaml.safe_load_all(one.read_text())) for one in EXAMPLES}
ODD = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, 10**30, "", "x", "<x>", "'", "a=b c", "\n# a: b\n"),
        *("${X}", "{tp}", [], [1], ["--x"], {}, {"a": 1}, {"name": 1}, [[]], [None]),
        *([{"name": "x"}], [{"a": {}}]),
    ]
)


def _list_places(value, place=()):
    if place:
        yield place
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _list_places(one, (*place, key))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from _list_places(one, (*place, i))


PLACES = {name: list(_list_places(documents)) for name, documents in DOCUMENTS.items()}


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_wrong_value_is_refused_or_converted(name, data, tmp_path_factory):
    content = copy.deepcopy(DOCUMENTS[name])
    place = data.draw(st.sampled_from(PLACES[name]))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = data.draw(ODD)
    file = tmp_path_factory.getbasetemp() / f"wrong-{name}"
    file.write_text(yaml.safe_dump_all(content))
    try:
        recipes = read_recipes(file)
    except ServeEvalError:
        return
    for recipe in recipes:
        parse(write_plan(recipe, "recipe.yaml", Path("plan.yaml")), "plan.yaml", PlanError)


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_here")
def test_a_recipe_is_converted_started_and_judged(tmp_path):
    in_a_process(f"setup init --from {EXAMPLES[0].parent}/orchestrator.yaml", exits=0)
    Path("references").mkdir()
    Path("references/word_problems.yaml").write_text(
        "org/model:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    )
    asked = "--limit 200 --references-dir references"
    in_a_process(
        "run --launcher simulated --model org/model --tasks word_problems"
        f" --set launcher.accuracy=0.9 -o simulated {asked}",
        exits=0,
    )
    answers = tmp_path / "simulated/logs/simulated.answers.jsonl"
    gpus = "--set 'launcher.gpus=[0, 1, 2]'"
    for name, faults, verdict in (
        ("sound", {}, "PASS"),
        ("corrupt", {"corrupt_after": 20, "when": {"gpus": "1"}}, "FAIL"),
    ):
        env = environment(faults=faults, answers=answers, XDG_CACHE_HOME=str(tmp_path))
        more = {key: value for key, value in env.items() if key.startswith(("STANDIN", "SERVE"))}
        in_a_process(
            f"run plan.yaml -o {name} {asked} {gpus}",
            PATH=env["PATH"],
            XDG_CACHE_HOME=str(tmp_path),
            **more,
            exits=0 if verdict == "PASS" else 1,
        )
        report = msgspec.json.decode((tmp_path / name / "report.json").read_bytes())
        assert report["tasks"][0]["verdict"]["outcome"].upper() == verdict
        assert list(report["endpoint"]["info"]["servers"]) == [
            *("context_0", "generation_0", "generation_1", "orchestrator")
        ]


NO_RECIPE = ("no form of a recipe", "cannot be read as YAML")


@dataclass
class Conversion:
    """Count the plans of a folder by the launcher that they use, and the recipes that have none.

    `refused` counts files by the reason, `failed` has the plans that a dry run refuses.
    """

    forms: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    others: int = 0

    @property
    def plans(self):
        return sum(self.forms.values())


def convert(folder):
    """Return what came of the recipes below a folder."""
    found = Conversion()
    for file in sorted(folder.rglob("*.y*ml")):
        try:
            recipes = read_recipes(file)
        except ServeEvalError as error:
            reason = str(error).removeprefix(str(file)).partition(": ")[2]
            if reason.startswith(NO_RECIPE):
                found.others += 1
            else:
                found.refused[reason] += 1
            continue
        for recipe in recipes:
            if problem := check(recipe, str(file)):
                found.failed[f"{file} {recipe.variant}"] = problem
            else:
                found.forms[f"{recipe.form}, launcher {_launcher(recipe, str(file))}"] += 1
    return found


def check(recipe, source):
    """Return why a dry run refuses the plan of a recipe; empty if it does not."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            code = _dry_run.show(resolve(_read(recipe, source), {}, {}).plan, as_json=False)
        return "" if code == 0 else f"exit code {code}"
    except ServeEvalError as error:
        return str(error)


def _read(recipe, source):
    text = write_plan(recipe, source, Path("plan.yaml"))
    return parse(text, "plan.yaml", ValueError).value


def _launcher(recipe, source):
    launcher = _read(recipe, source)["launcher"]
    assert isinstance(launcher, dict)
    return str(launcher["name"])


def list_lines(folder):
    """Yield the result of a folder for people."""
    began = time.monotonic()
    found = convert(folder)
    yield f"{folder}: {found.plans} plans, {len(found.failed)} refused by a dry run"
    yield from (f"  {count:5} {form}" for form, count in found.forms.most_common())
    yield from (f"  {count:5} files not converted: {why}" for why, count in found.refused.items())
    yield f"  {found.others:5} files that are no recipes"
    yield from (f"  refused: {name}: {why}" for name, why in found.failed.items())
    yield f"  {time.monotonic() - began:.0f} s"


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
def test_a_recipe_is_short(title):
    assert len(f"{title} {RECIPES[title]}".split()) <= MOST_WORDS


@pytest.mark.slow
@pytest.mark.parametrize("title", TRIALS)
def test_a_recipe_prints_what_it_shows(title, tmp_path, monkeypatch):
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


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print("\n".join(list_lines(Path(argument))))
