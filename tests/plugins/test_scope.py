"""Test runs with code of several folders in one process, and misspelt fields of such code."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from serve_eval.cases.questions import scorer_of
from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.scope import keep_in_scope, scope, with_scope
from serve_eval.schema import Plan, Spec
from tests.cli.command import serve_eval
from tests.plugins.conftest import write_task

pytestmark = pytest.mark.usefixtures("simulated_here")
TASKS = "serve_eval.tasks"
SCORER = """
from serve_eval.schema import Outcome, Score, Scorer


def scorer():
    return Scorer(
        version={version},
        score=lambda expected, response: Score(value=1.0, outcome=Outcome.CORRECT),
        answers=lambda expected: ("right", "wrong"),
        problems=lambda expected: [],
    )
"""


def _plan(*folders):
    launcher = Spec(name="simulated", options={"accuracy": 1.0})
    paths = tuple(map(str, folders))
    return Plan(
        model="m",
        launcher=launcher,
        tasks=(Spec(name="towns"),),
        include_path=paths,
        no_reference=True,
    )


def _checksum(report):
    found = report.environment["extensions"]
    assert isinstance(found, dict)
    return str(found["tasks.towns"].sha256)


def _origin(report):
    found = report.environment["extensions"]
    assert isinstance(found, dict)
    assert list(found) == ["tasks.towns"]
    return str(found["tasks.towns"].origin)


def test_two_runs_one_after_the_other_have_each_the_task_of_its_own_folder(tmp_path):
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two")
    for folder in (one, two, one):
        report = asyncio.run(evaluate(_plan(folder), tmp_path / f"out_{folder.name}"))
        assert _origin(report) == str(folder / "tasks/towns.py")
        assert report.tasks[0].result.value == 100.0
        assert _origin(judge_again(_plan(folder), tmp_path / f"out_{folder.name}")) == str(
            folder / "tasks/towns.py"
        )
    with pytest.raises(PlanError, match="unknown task 'towns'"):
        asyncio.run(evaluate(_plan(), tmp_path / "out"))
    assert (extensions.list_included(), extensions.list_loaded()) == ((), {})
    with pytest.raises(
        PlanError,
        match=f"two places offer the task 'towns': {one}/tasks/towns.py and {two}/tasks/towns.py",
    ):
        asyncio.run(evaluate(_plan(one, two), tmp_path / "both"))


async def test_two_runs_that_take_turns_have_each_the_task_of_its_own_folder(
    tmp_path,
):
    folders = [write_task(tmp_path / name) for name in ("one", "two")]
    async with asyncio.TaskGroup() as group:
        runs = [
            group.create_task(evaluate(_plan(folder), tmp_path / f"out_{folder.name}"))
            for folder in folders
        ]
    assert [_origin(report) for report in [run.result() for run in runs]] == [
        str(one / "tasks/towns.py") for one in folders
    ]


def test_a_later_run_has_the_code_of_a_folder_as_it_is_then(tmp_path):
    folder = write_task(tmp_path / "one")
    first = asyncio.run(evaluate(_plan(folder), tmp_path / "first"))
    (folder / "tasks/_reading.py").write_text(
        "def said(text: str) -> str:\n    return 'something else'\n"
    )
    second = asyncio.run(evaluate(_plan(folder), tmp_path / "second"))
    assert (first.tasks[0].result.value, second.tasks[0].result.value) == (100.0, 0.0)
    assert _checksum(first) != _checksum(second)


def test_a_run_goes_on_with_the_code_that_it_began_with(tmp_path):
    folder = write_task(tmp_path / "one")
    with scope():
        extensions.include([str(folder)])
        before = inspect.unwrap(registry.load(TASKS, "towns"))
        known = extensions.list_loaded()
        (folder / "tasks/towns.py").write_text("raise RuntimeError\n")
        with scope():
            assert inspect.unwrap(registry.load(TASKS, "towns")) is before
            assert extensions.list_loaded() == known
    extensions.include([str(folder)])
    with pytest.raises(PlanError, match="RuntimeError"):
        registry.load(TASKS, "towns")


def test_what_is_kept_is_made_once_in_a_scope_and_not_known_beside_it():
    made = []

    @keep_in_scope
    def make(name):
        made.append(name)
        return len(made)

    with scope():
        assert [make("a"), make("a"), make("b")] == [1, 1, 2]
        with scope():
            assert [make("a"), make("c")] == [1, 3]
        assert make("c") == 4
    with scope():
        assert make("a") == 5


async def test_a_run_that_fails_leaves_nothing_of_its_folder(tmp_path):
    folder = write_task(tmp_path / "one")
    with pytest.raises(PlanError, match="unknown launcher 'nowhere'"):
        await evaluate(
            Plan(**{**_as_dict(_plan(folder)), "launcher": Spec(name="nowhere")}),
            tmp_path / "out",
        )
    assert "towns" not in registry.names(TASKS)


def _as_dict(plan):
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


async def test_a_run_has_the_folders_of_the_command_around_it_and_what_that_loaded(
    tmp_path,
):
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two", name="cities")
    with scope():
        extensions.include([str(two)])
        registry.load(TASKS, "cities")
        report = await evaluate(_plan(one), tmp_path / "out")
        assert set(report.environment["extensions"]) == {"tasks.cities", "tasks.towns"}
        assert (extensions.list_included(), list(extensions.list_loaded())) == (
            (str(two),),
            ["tasks.cities"],
        )
    assert (extensions.list_included(), extensions.list_loaded()) == ((), {})


def test_a_scorer_that_two_folders_have_is_that_of_the_folder_that_is_included(
    tmp_path,
):
    told = []
    for version, name in ((1, "one"), (2, "two"), (1, "one")):
        (tmp_path / name / "scorers").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "scorers/close.py").write_text(SCORER.format(version=version))
        with scope():
            extensions.include([str(tmp_path / name)])
            told.append(scorer_of(Spec(name="close")))
            assert scorer_of(Spec(name="close")) is told[-1]
            assert list(extensions.list_loaded()) == ["scorers.close"]
    assert [one.version for one in told] == [1, 2, 1]


async def test_plans_and_commands_leave_nothing(tmp_path, monkeypatch):
    folders = [write_task(tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        told = serve_eval("data", "list", "tasks", "--include-path", folder)
        assert f"from {folder}/tasks/towns.py" in told.stdout
        assert told.returncode == 0, told.stderr

    def outside():
        for folder in folders:
            resolve(
                {
                    "tasks": ["towns"],
                    "model": "m",
                    "include_path": str(folder),
                    "no_reference": True,
                },
                {},
                {},
            )
        return registry.names(TASKS)

    from contextvars import Context

    assert "towns" not in (
        await asyncio.get_running_loop().run_in_executor(None, lambda: Context().run(outside))
    ), "a fresh context must not have a scope"


def test_a_scoped_function_is_called_as_it_was(tmp_path):
    folder = write_task(tmp_path)

    @with_scope
    def names(*, more: str):
        """List the tasks."""
        extensions.include([more])
        return registry.names(TASKS)

    assert "towns" in names(more=str(folder))
    assert "towns" not in registry.names(TASKS)
    assert (names.__name__, names.__doc__) == ("names", "List the tasks.")


TASK = """\
from serve_eval import Sample, Score, Task
from serve_eval.schema import Dataset, Hypothesis, Message, Metric, SamplingParams


def task() -> Task:
    \"\"\"Repeat a word.\"\"\"
    return Task(
        name="words", version=1, reference_file="words", metric=Metric(),
        hypothesis=Hypothesis(num_samples=2), sampling=SamplingParams(max_tokens=4),
        protocol={}, datasets=(), load=load, answers=lambda sample: ("a", "b"),
        score=lambda sample, response: Score(value=1.0),
    )


def load(roots, wanted):
    samples = [Sample(id=str(i), prompt="Say a.", target="a") for i in range(wanted)]
    return Dataset(samples=samples, files=(), total=wanted)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("reference_file=", "referense_file=", "Task has no field 'referense_file'. Did you mean"),
        ("num_samples=2", "num_sample=2", "Hypothesis has no field 'num_sample'. Did you mean"),
        ("max_tokens=4", "max_token=4", "SamplingParams has no field 'max_token'. Did you mean"),
        ("target=", "targt=", "Sample has no field 'targt'. Did you mean 'target'?"),
        ("metric=Metric(),", "", "Task needs 'metric'"),
        ("samples=samples", "sample=samples", "Dataset has no field 'sample'. Did you mean"),
        ('prompt="Say a."', 'prompt=(Message(rol="user"),)', "Message has no field 'rol'. Did"),
        ('prompt="Say a."', 'prompt=(Message(role="user"),)', "Message needs 'content'"),
    ],
)
def test_a_field_that_a_noun_lacks_is_a_plan_error(right, wrong, said, tmp_path):
    flags = ["-t", "words", "--launcher", "simulated", "-m", "m", "--no-reference", "--dry-run"]
    for name, text in [("good", TASK), ("bad", TASK.replace(right, wrong))]:
        file = tmp_path / name / "tasks/words.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert serve_eval("run", *flags, "--include-path", tmp_path / "good").returncode == 0
    done = serve_eval("run", *flags, "--include-path", tmp_path / "bad")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert f"{file}:" in done.stderr


CHOICE_SCORER = """\
from serve_eval.schema import Outcome, Score, Scorer


def scorer() -> Scorer:
    \"\"\"Accept every answer.\"\"\"
    return Scorer(version=1, score=score, answers=lambda expected: ("a", "b"), problems=problems)


def problems(expected):
    return []


def score(expected, response):
    return Score(value=1.0, outcome=Outcome.CORRECT)
"""
RULE = """\
from serve_eval.schema import Verdict, VerdictOutcome


def judge(result, reference, hypothesis, pairs) -> Verdict:
    \"\"\"Pass.\"\"\"
    return Verdict(
        task=result.task, outcome=VerdictOutcome.PASS, rule="lenient", evaluated=result.value
    )
"""


def _write(folder, kind, name, text):
    file = folder / kind / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("version=1, ", "", "Scorer needs 'version'"),
        ("answers=", "answer=", "Scorer has no field 'answer'. Did you mean 'answers'?"),
        ("Scorer(version=1", "Scorer(1, version=1", "Scorer takes its fields by name"),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_a_field_that_a_scorer_lacks_is_a_plan_error(right, wrong, said, inner, tmp_path):
    cases = tmp_path / "cases.yaml"
    one = "{any_of: {scorer: ending}}" if inner else "ending"
    case = f"{{case: a, input: {{prompt: Say a.}}, expected: {'[a]' if inner else 'a'}}}"
    cases.write_text(f"words: {{scorer: {one}, cases: [{case}]}}\n")
    flags = ["-t", "cases:words", "--set", f"cases:words.path={cases}", "--launcher", "simulated"]
    flags += ["-m", "m", "--no-reference", "--dry-run"]
    _write(tmp_path / "good", "scorers", "ending", CHOICE_SCORER)
    file = _write(tmp_path / "bad", "scorers", "ending", CHOICE_SCORER.replace(right, wrong))
    done = serve_eval("run", *flags, "--include-path", tmp_path / "good")
    assert done.returncode == 0, done.stderr
    done = serve_eval("run", *flags, "--include-path", tmp_path / "bad")
    assert (done.returncode, f"{file}:6: {said}" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("evaluated=", "evaluate=", "Verdict has no field 'evaluate'. Did you mean 'evaluated'?"),
        ("task=result.task, ", "", "Verdict needs 'task'"),
    ],
)
def test_a_field_that_a_verdict_lacks_is_told_with_its_line(right, wrong, said, tmp_path):
    _write(tmp_path, "tasks", "words", TASK)
    file = _write(tmp_path, "verdicts", "lenient", RULE.replace(right, wrong))
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/words.yaml").write_text("m:\n  - {accuracy: 90.0, source: ours}\n")
    flags = ["-t", "words", "--launcher", "simulated", "-m", "m", "--verdict", "lenient"]
    flags += ["--references-dir", tmp_path / "refs", "--output-dir", tmp_path / "out"]
    done = serve_eval("run", *flags, "--include-path", tmp_path)
    told = " ".join((done.stdout + done.stderr).split())
    assert f"{file}:6: {said}" in told, told
    assert "judge() raised" not in told


LAUNCHER = """\
from contextlib import asynccontextmanager
from serve_eval.schema import Endpoint


@asynccontextmanager
async def launch(context):
    \"\"\"Nothing.\"\"\"
    yield Endpoint(base_url="http://127.0.0.1:9", modle="m")


def commands(context):
    return []
"""


def test_a_field_that_an_endpoint_lacks_is_a_plan_error(tmp_path):
    _write(tmp_path, "tasks", "words", TASK)
    file = _write(tmp_path, "launchers", "near", LAUNCHER)
    flags = ["-t", "words", "--launcher", "near", "-m", "m", "--no-reference"]
    done = serve_eval("run", *flags, "--output-dir", tmp_path / "out", "--include-path", tmp_path)
    told = f"{file}:8: Endpoint has no field 'modle'. Did you mean 'model'?"
    assert told in " ".join(done.stderr.split()), done.stderr
