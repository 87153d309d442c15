"""Test the JSON Schemas: they are those of the code, real files fit them, and mistakes do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from serve_eval.cli.setup_schema import KINDS
from serve_eval.errors import PlanError
from serve_eval.plan.plan_file import KEYS
from serve_eval.plan.resolve import resolve
from serve_eval.yaml_source import read
from tests.cli.command import serve_eval

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = {kind: json.loads((ROOT / f"docs/schemas/{kind}.json").read_text()) for kind in KINDS}
VALIDATORS = {kind: Draft202012Validator(schema) for kind, schema in COMMITTED.items()}
SUITE_KEYS = {"plans", "matrix"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schema_is_that_of_the_code(kind: str) -> None:
    """After a change: make task-pages, and see docs/schemas.md."""
    printed = serve_eval("setup", "schema", kind)
    assert json.loads(printed.stdout) == COMMITTED[kind], "run make task-pages"
    Draft202012Validator.check_schema(COMMITTED[kind])
    assert COMMITTED[kind]["$id"].startswith(f"urn:serve-eval:{kind}:")


def test_an_unknown_kind_is_a_wrong_use() -> None:
    done = serve_eval("setup", "schema", "plam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no schema of 'plam'. Did you mean 'plan'?" in done.stderr


@pytest.mark.usefixtures("simulated_here")
def test_the_files_of_a_run_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = serve_eval(
        "run", "--launcher", "simulated", "--set", "launcher.failure_rate=0.5",
        "--set", "launcher.failure_kind='500'", "--tasks", "word_problems", "--limit", "30",
        "--model", "embedded", "--set", "limits.max_attempts=1", "--set", "limits.max_error_rate=1",
        "-o", tmp_path / "out",
    )  # fmt: skip
    assert (tmp_path / "out/report.json").exists(), done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert list(VALIDATORS["report"].iter_errors(report)) == []
    monkeypatch.chdir(tmp_path)
    Path("outputs").mkdir()
    Path("outputs/latest").symlink_to(tmp_path / "out")
    Path("report.schema.json").write_text(json.dumps(COMMITTED["report"]))
    page = (ROOT / "docs/schemas.md").read_text()
    exec(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0], {})
    lines = (tmp_path / "out/samples/word_problems.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {"failure", "response"} <= {key for record in records for key in record}
    assert [one for r in records for one in VALIDATORS["journal"].iter_errors(r)] == []
    assert report["schema_version"] == int(COMMITTED["report"]["$id"].rpartition(":")[2])
    for broken in ({**report, "exit_code": "0"}, {k: report[k] for k in report if k != "tasks"}):
        assert not VALIDATORS["report"].is_valid(broken)
    assert not VALIDATORS["journal"].is_valid({**records[0], "id": 1})


def _list_examples(tmp_path: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield each plan and suite of the documentation: its kind, its page and its content."""
    for page in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        for text in re.findall(r"^```(?:yaml)?\n(.*?)^```", page.read_text(), re.M | re.S):
            file = tmp_path / "block.yaml"
            file.write_text(text)
            try:
                content = read(file, PlanError).value
            except PlanError:
                continue
            known = {*KEYS, "name", "defaults", "plans", "matrix", "exclude", "waivers"}
            if isinstance(content, dict) and content and set(content) <= known:
                yield "suite" if SUITE_KEYS & set(content) else "plan", page, content


def test_the_plans_and_suites_of_the_documentation_fit(tmp_path: Path) -> None:
    examples = list(_list_examples(tmp_path))
    assert len([kind for kind, _, _ in examples if kind == "plan"]) > 15
    assert len([kind for kind, _, _ in examples if kind == "suite"]) >= 1
    for file in (ROOT / "docs/vllm").glob("*.yaml"):
        examples.append(("plan", file, read(file, PlanError).value))
    for kind, page, content in examples:
        found = [error.message for error in VALIDATORS[kind].iter_errors(content)]
        assert found == [], (page, content)


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        ({"tsks": ["gsm8k"]}, []),
        ({"tasks": "gsm8k"}, ["tasks"]),
        ({"tasks": [1]}, ["tasks", 0]),
        ({"limit": "many"}, ["limit"]),
        ({"no_reference": "yes"}, ["no_reference"]),
        ({"repeats": {"gsm8k": "two"}}, ["repeats"]),
        ({"accuracy_spec": {"quant": "FP8"}}, ["accuracy_spec"]),
        ({"limits": {"concurency": 3}}, ["limits"]),
        ({"limits": {"order": "backwards"}}, ["limits", "order"]),
        ({"connection": {"headers": {"X": 1}}}, ["connection", "headers", "X"]),
        ({"launcher": {"name": "embedded", "damge": "int3"}}, ["launcher"]),
        ({"launcher": {"embedded": {"damage": "int9"}}}, ["launcher", "embedded", "damage"]),
        ({"launcher": {"name": "trtllm", "tp": "two"}}, ["launcher", "tp"]),
        ({"verdict": []}, ["verdict"]),
    ],
)
def test_a_mistake_is_refused_by_the_schema_and_by_the_code(
    plan: dict[str, Any], place: list[object]
) -> None:
    whole = {"model": "m", "tasks": ["word_problems"], **plan}
    errors = list(VALIDATORS["plan"].iter_errors(whole))
    assert [list(error.absolute_path) for error in errors] == [place]
    with pytest.raises(PlanError):
        resolve(whole, {}, {})


def test_names_and_options_of_the_user_are_accepted() -> None:
    for launcher in ("mine", {"name": "mine", "gpus": 2}, {"mine": {"gpus": 2}}):
        plan = {"launcher": launcher, "tasks": ["mine", {"gsm8k": {"num_fewshot": 8}}]}
        assert VALIDATORS["plan"].is_valid(plan)


@pytest.mark.parametrize(
    "suite",
    [
        {"plan": []},
        {"plans": [{"modl": "m"}]},
        {"plans": [{"model": "m", "output_dir": "out"}]},
        {"defaults": {"limits": {"x": 1}}},
        {"matrix": {"model": []}},
        {"waivers": [{"match": {"task": "mmlu"}, "reason": "issue 12"}]},
        {"exclude": [{"tasks": "mmlu"}]},
        {"max_runs": 0},
    ],
)
def test_a_mistake_in_a_suite_is_refused(suite: dict[str, Any]) -> None:
    assert not VALIDATORS["suite"].is_valid({"plans": ["a.yaml"], **suite})
