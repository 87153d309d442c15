"""Convert folders of recipes, and recipes in which any value was replaced.

They are those of other projects, which this repository does not have: clones of NVIDIA/srt-slurm
and SemiAnalysisAI/InferenceX. `make test-recipes RECIPES=...` runs this test.
"""

import copy
import os
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.workflows.init.recipe_plans import read_recipes, write_plan
from serve_eval.yaml_source import parse
from tests.cli.command import in_a_process
from tests.recipes.conversion import convert, list_lines
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
    in_a_process(f"setup init --from {EXAMPLES}/orchestrator.yaml", exits=0)
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
