"""Test the task, the scorer and the rule of the pages, added as the pages say."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serve_eval.tasks
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.plugins import registry
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Outcome, Plan, Report, Response, Spec
from tests.root import ROOT

EXTENDING = (ROOT / "docs/extending.md").read_text()
PAGE = EXTENDING.partition("\n## Add a built-in task\n")[2].partition("\n## ")[0]
SPEC = Spec(name="capitals", options={"num_samples": 40})


def _block(kind: str) -> str:
    [text] = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def _file(name: str) -> str:
    """Return a file of the page's folder, whose path stands above it."""
    shown = rf"^`{re.escape(name)}`[^\n]*\n\n```\w+\n(.*?)^```"
    [text] = re.findall(shown, EXTENDING, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def root(tmp_path, monkeypatch) -> Iterator[Path]:
    """Return a folder with the page's task, its data and its reference.

    The task exists for the length of a test.
    """
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/capitals.py").write_text(_block("python"))
    monkeypatch.setattr(
        serve_eval.tasks, "__path__", [*serve_eval.tasks.__path__, str(tmp_path / "tasks")]
    )
    row = _block("json").strip()
    assert json.loads(row)["capital"] == "Town 1"
    (tmp_path / "capitals").mkdir()
    (tmp_path / "capitals/test.jsonl").write_text(
        "".join(row.replace("1", str(i)) + "\n" for i in range(40))
    )
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/capitals.yaml").write_text(_file("my-references/rivers.yaml"))
    yield tmp_path
    sys.modules.pop("serve_eval.tasks.capitals", None)
    if hasattr(serve_eval.tasks, "capitals"):
        del serve_eval.tasks.capitals


def _run(root: Path, accuracy: float) -> Report:
    plan = Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": accuracy, "strict_fields": True}),
        tasks=(SPEC,),
        dataset_roots=(str(root),),
        references_dir=str(root / "refs"),
    )
    return asyncio.run(evaluate(plan, root / f"out-{accuracy}", environ={}))


def test_it_is_listed_asked_scored_and_judged(root: Path):
    assert "capitals" in registry.names("serve_eval.tasks")
    assert (
        registry.summary("serve_eval.tasks", "capitals")
        == "Capitals: the name of a country's capital city, as an example of a task."
    )
    good, bad = _run(root, 1.0), _run(root, 0.0)
    assert [(t.result.value, t.verdict.outcome.value, t.verdict.reference) for t in good.tasks] == [
        (100.0, "PASS", 100.0)
    ]
    assert [(t.result.value, t.verdict.outcome.value) for t in bad.tasks] == [(0.0, "FAIL")]


def test_its_scorer_reads_what_it_says(root: Path):
    task = build_task(SPEC)
    sample = task.load(DataRoots(roots=(root,)), 40).samples[1]
    assert (sample.prompt, sample.target) == ("The capital of Land 1 is", "Town 1")
    outcomes = [
        task.score(sample, Response(text=t, finish_reason="stop")).outcome
        for t in (" town 1.", "Town 2", ".")
    ]
    assert outcomes == [Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSED]


WRITTEN = {
    "NOTICE",
    "docs/schemas/plan.json",
    "docs/schemas/suite.json",
    "docs/tasks.md",
    "tests/tasks/golden_prompts.json",
}
"""The files that `make task-pages` changes for the task of the page."""
TESTS = [
    *("tests/tasks/test_contract.py", "tests/test_pages.py"),
    *("tests/cli/test_options.py", "tests/test_architecture.py"),
    *("tests/prose", "tests/datasets/test_local.py", "tests/cli/test_help.py"),
]
CONCERNED = "not described_with and (capitals or not (test_contract or test_golden_prompts))"
"""Of the tests of each task, those of the new one; its page gives the option no meaning."""


def _python(copy: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", *arguments],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


@pytest.fixture
def copy(tmp_path) -> Path:
    """Return a copy of this checkout."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "outputs")
    shutil.copytree(ROOT, tmp_path / "copy", symlinks=True, ignore=left_out)
    return tmp_path / "copy"


@pytest.mark.slow
def test_a_file_a_line_and_a_command_are_all_that_a_task_takes(copy: Path):
    [line] = re.findall(r"^    write_rows\(.*\)$", PAGE, re.MULTILINE)
    (copy / "serve_eval/tasks/capitals.py").write_text(_block("python"))
    head = '    """Write every set below a root, with as many rows as its task asks for."""\n'
    _insert_below(copy / "tests/tasks/made_data.py", head, line)

    done = _python(copy, "-m", "tests.tasks.task_pages", seconds=120)
    assert done.returncode == 0, done.stderr
    assert {row.partition(":")[0] for row in done.stdout.splitlines()} == WRITTEN
    for name in WRITTEN:
        old, new = (folder.joinpath(name).read_text().splitlines() for folder in (ROOT, copy))
        changes = [row for row in difflib.ndiff(old, new) if row[:1] in "-+"]
        removed = [row for row in changes if row.startswith("-")]
        assert removed == [] or name.endswith(".json"), removed
        assert [row for row in changes if "capitals" in row], name
    again = _python(copy, "-m", "tests.tasks.task_pages", seconds=120)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr

    known = _python(copy, "-m", "serve_eval", "data", "list", "datasets", "-v", seconds=60)
    assert "capitals: Capitals, 40 test; licence: CC0" in known.stdout
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not slow")
    tried = _python(copy, *tests, "-k", CONCERNED, *TESTS, seconds=600)
    assert tried.returncode == 0, tried.stdout[-15000:]


@pytest.mark.slow
def test_values_that_a_task_refuses_are_named_with_the_line_that_lists_others(copy: Path):
    [line] = re.findall(r"^    write_rows\(.*\)$", PAGE, re.MULTILINE)
    more = "*, num_samples: int = ROWS, num_fewshot: int = 3, random_seed: int = 0, style: int = 0"
    more += ', region: str = "all"'
    ranges = (
        '    if not 0 <= num_fewshot <= 3:\n        raise PlanError("0 to 3")\n'
        "    [0][style]\n    if num_samples < 1:\n"
    )
    file = _block("python").replace("*, num_samples: int = ROWS", more)
    file = file.replace("    if num_samples < 1:\n", ranges)
    (copy / "serve_eval/tasks/capitals.py").write_text(file)
    head = '    """Write every set below a root, with as many rows as its task asks for."""\n'
    _insert_below(copy / "tests/tasks/made_data.py", head, line)

    refused = _python(copy, "-m", "tests.tasks.task_pages", seconds=120)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        "capitals: a value to try is needed for region, num_fewshot, style:",
        "  capitals region: no other value than its default is known",
        "  capitals num_fewshot=4: PlanError: 0 to 3",
        "  capitals style=1: IndexError: list index out of range",
        "Add this line in OPTIONS of tests/tasks/golden_prompts.py, with a value that the task"
        " takes for VALUE (or name an option in ASK_THE_SAME if it changes nothing):",
        '    "capitals": [{"region": VALUE}, {"num_fewshot": VALUE}, {"style": VALUE}],',
    ]
    listed = refused.stderr.splitlines()[-1].replace("VALUE", '"a"', 1).replace("VALUE", "0")
    options = "OPTIONS = {\n"
    _insert_below(copy / "tests/tasks/golden_prompts.py", options, listed)
    done = _python(copy, "-m", "tests.tasks.task_pages", seconds=120)
    assert done.returncode == 0, done.stderr
    added = set(re.findall(r"added capitals (.*)=", done.stdout))
    assert added == {"region", "num_fewshot", "style", "random_seed"}


TASK, MADE = "serve_eval/tasks/capitals.py", "tests/tasks/made_data.py"
PROMPT = """prompt=f"The capital of {row['country']} is\""""
MISTAKES = [
    ("def task(", "def task((", rf"{TASK}:\d+: SyntaxError: .*"),
    ('"""Capitals: ', "# ", rf"{TASK}:1: the file has no docstring"),
    ("def task(", "def tusk(", rf"{TASK}:1: the file has no function task\(\*, \.\.\.\)"),
    ("        version=1,\n", "", rf"{TASK}:\d+: Task needs 'version'"),
    (
        "metric=Metric()",
        "metrics=Metric()",
        rf"{TASK}:\d+: Task has no field 'metrics'\. .*'metric'\?",
    ),
    (PROMPT, "prompt=(Message(role='user', content='A'),)", rf"{TASK}:\d+: .* set chat=True .*"),
    (
        PROMPT,
        "prompt=[Message(role='user', content='A')]",
        rf"{TASK}:\d+: .* or a tuple of Message, .*",
    ),
    (
        PROMPT,
        "prompt=Message(role='user', content='A')",
        rf"{TASK}:\d+: .* or a tuple of Message, .*",
    ),
    (
        "return Dataset(",
        "return list(samples) or Dataset(",
        rf"{TASK}:\d+: load\(\) must return a Dataset.*",
    ),
    (
        'id=f"test-{i}"',
        'id="test"',
        rf"{TASK}:\d+: capitals: samples 1 and 2 have the same id 'test'",
    ),
    ("    return Task(", "    Task(", rf"{TASK}:\d+: task\(\) must return a Task .*, not None"),
    ("row['country']", "row['land']", rf"{TASK}:\d+: KeyError: 'land'"),
    ('name="capitals",\n        v', 'name="x",\n        v', rf"{TASK}:\d+: made the task 'x' .*"),
    ('PROMPT_FROM = "ours"\n', "", rf"{TASK}:\d+: PROMPT_FROM is missing; .*"),
    ("    write_rows(", "    write_row(", rf"{MADE}:\d+: NameError: name 'write_row' .*"),
    ("    write_rows(", "    write_rows((", rf"{MADE}:\d+: SyntaxError: .*"),
    ("    write_rows(", "    # ", rf"{MADE}:\d+: capitals: its test data is missing or .*"),
    ("capital=", "town=", rf"{MADE}:\d+: capitals: its test data is missing or .*"),
]
"""Mistakes in the page's file or line, each with the first line that `make task-pages` prints."""


@pytest.mark.slow
def test_a_mistake_in_a_task_or_its_data_is_named_with_its_line(copy: Path):
    [line] = re.findall(r"^    write_rows\(.*\)$", PAGE, re.MULTILINE)
    made = (copy / MADE).read_text("utf-8")
    head = '    """Write every set below a root, with as many rows as its task asks for."""\n'
    for right, wrong, told in MISTAKES:
        (copy / MADE).write_text(made, encoding="utf-8")
        assert right in _block("python") or right in line, right
        text = _block("python").replace(right, wrong, 1)
        (copy / TASK).write_text(text.replace("    Metric,\n", "    Message,\n    Metric,\n"))
        _insert_below(copy / MADE, head, line.replace(right, wrong, 1))
        refused = _python(copy, "-m", "tests.tasks.task_pages", seconds=120)
        assert (refused.returncode, refused.stdout) == (1, ""), (wrong, refused.stderr)
        first, *more = refused.stderr.splitlines()
        assert re.fullmatch(told, first), refused.stderr
        assert len(more) <= 1, refused.stderr
        assert all((copy / one).read_text() == (ROOT / one).read_text() for one in WRITTEN), wrong
        # A line in which something stands wrong is named itself.
        file, number, _ = first.split(":", 2)
        if "Error: " in first and wrong.strip() and file == MADE:
            assert wrong.strip() in (copy / file).read_text("utf-8").splitlines()[int(number) - 1]


SCORER_AND_RULE_TESTS = [
    *(
        "tests/scorers/test_offered.py",
        "tests/cli/test_options.py",
    ),
    *("tests/verdicts/test_every_rule.py", "tests/plugins/test_registry.py", "tests/prose"),
    *("tests/cases/test_scorer_options.py", "tests/cli/test_help.py"),
    *("tests/plan/test_resolve.py", "tests/test_architecture.py"),
]


ENDING = '''"""The answer ends with the expected text."""

from __future__ import annotations

from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import find_zero_answer, text_of, text_problems


def scorer(*, ignore_case: bool = True) -> Scorer:
    """Return a scorer that gives 1 if the expected text comes last, up to a full stop."""

    def form(text: str) -> str:
        last = text.strip().rstrip(".")
        return last.casefold() if ignore_case else last

    def score(expected: object, response: Response) -> Score:
        said = form(response.text)
        if not said:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        right = said.endswith(form(text_of(expected)))
        return Score(
            value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG, answer=said
        )

    def problems(expected: object) -> list[str]:
        if wrong := text_problems(expected):
            return wrong
        return [] if form(text_of(expected)) else ["expected must be more than full stops"]

    def answers(expected: object) -> tuple[str, str]:
        def try_text(text: str) -> Score:
            return score(expected, Response(text=text, finish_reason="stop"))

        return f"It is {text_of(expected)}.", find_zero_answer(try_text)

    return Scorer(version=1, score=score, answers=answers, problems=problems, scoring="inline")
'''


def _insert_below(file: Path, head: str, line: str) -> None:
    text = file.read_text("utf-8")
    assert head in text, head
    file.write_text(text.replace(head, f"{head}{line}\n", 1), encoding="utf-8")


@pytest.mark.slow
def test_a_scorer_and_a_rule_take_a_file_and_a_line_each(copy: Path):
    (copy / "serve_eval/scorers/ending.py").write_text(ENDING)
    (copy / "serve_eval/verdicts/rules/within.py").write_text(_file("my-evals/verdicts/within.py"))
    [row] = re.findall(r"^\| ending .*$", EXTENDING, re.MULTILINE)
    head = (
        "| scorer | `expected` | options | example | answer | score |\n|---|---|---|---|---|---|\n"
    )
    _insert_below(copy / "docs/own-questions.md", head, row)
    [limit] = re.findall(r'^    "within": .*$', EXTENDING, re.MULTILINE)
    limits = "LIMITS = {\n"
    _insert_below(copy / "tests/verdicts/test_every_rule.py", limits, limit)

    done = _python(copy, "-m", "tests.tasks.task_pages", seconds=120)
    assert done.returncode == 0, done.stderr
    changed = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert changed == {"docs/schemas/plan.json", "docs/schemas/suite.json"}
    known = _python(copy, "-m", "serve_eval", "data", "list", "-v", seconds=60).stdout
    assert "The answer ends with the expected text." in known
    assert "Within: passes a value" in known
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not slow")
    new = "ending or within or not (test_offered or test_every_rule)"
    tried = _python(copy, *tests, "-k", new, *SCORER_AND_RULE_TESTS, seconds=600)
    assert tried.returncode == 0, tried.stdout[-15000:]
