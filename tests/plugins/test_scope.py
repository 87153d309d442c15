"""Runs in one process that use code from different folders do not see each other's code."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from serve_eval.cases.questions import scorer_of
from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.scope import keep_in_scope, scope, with_scope
from serve_eval.schema import Plan, Report, Spec
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


def _plan(*folders: Path) -> Plan:
    launcher = Spec(name="simulated", options={"accuracy": 1.0})
    paths = tuple(map(str, folders))
    return Plan(
        model="m",
        launcher=launcher,
        tasks=(Spec(name="towns"),),
        include_path=paths,
        no_reference=True,
    )


def _checksum(report: Report) -> str:
    found = report.environment["extensions"]
    assert isinstance(found, dict)
    return str(found["tasks.towns"].sha256)


def _origin(report: Report) -> str:
    found = report.environment["extensions"]
    assert isinstance(found, dict)
    assert list(found) == ["tasks.towns"]
    return str(found["tasks.towns"].origin)


def test_two_runs_one_after_the_other_have_each_the_task_of_its_own_folder(tmp_path: Path) -> None:
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


def test_two_runs_that_take_turns_have_each_the_task_of_its_own_folder(tmp_path: Path) -> None:
    folders = [write_task(tmp_path / name) for name in ("one", "two")]

    async def both() -> list[Report]:
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(evaluate(_plan(folder), tmp_path / f"out_{folder.name}"))
                for folder in folders
            ]
        return [run.result() for run in runs]

    assert [_origin(report) for report in asyncio.run(both())] == [
        str(one / "tasks/towns.py") for one in folders
    ]


def test_a_later_run_has_the_code_of_a_folder_as_it_is_then(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one")
    first = asyncio.run(evaluate(_plan(folder), tmp_path / "first"))
    (folder / "tasks/_reading.py").write_text(
        "def said(text: str) -> str:\n    return 'something else'\n"
    )
    second = asyncio.run(evaluate(_plan(folder), tmp_path / "second"))
    assert (first.tasks[0].result.value, second.tasks[0].result.value) == (100.0, 0.0)
    assert _checksum(first) != _checksum(second)


def test_a_run_goes_on_with_the_code_that_it_began_with(tmp_path: Path) -> None:
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


def test_what_is_kept_is_made_once_in_a_scope_and_not_known_beside_it() -> None:
    made = []

    @keep_in_scope
    def make(name: str) -> int:
        made.append(name)
        return len(made)

    with scope():
        assert [make("a"), make("a"), make("b")] == [1, 1, 2]
        with scope():
            assert [make("a"), make("c")] == [1, 3]
        assert make("c") == 4
    with scope():
        assert make("a") == 5


def test_a_run_that_fails_leaves_nothing_of_its_folder(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one")
    with pytest.raises(PlanError, match="unknown launcher 'nowhere'"):
        asyncio.run(
            evaluate(
                Plan(**{**_as_dict(_plan(folder)), "launcher": Spec(name="nowhere")}),
                tmp_path / "out",
            )
        )
    assert "towns" not in registry.names(TASKS)


def _as_dict(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_a_run_has_the_folders_of_the_command_around_it_and_what_that_loaded(
    tmp_path: Path,
) -> None:
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two", name="cities")
    with scope():
        extensions.include([str(two)])
        registry.load(TASKS, "cities")
        report = asyncio.run(evaluate(_plan(one), tmp_path / "out"))
        assert set(report.environment["extensions"]) == {"tasks.cities", "tasks.towns"}  # type: ignore[call-overload]
        assert (extensions.list_included(), list(extensions.list_loaded())) == (
            (str(two),),
            ["tasks.cities"],
        )
    assert (extensions.list_included(), extensions.list_loaded()) == ((), {})


def test_a_scorer_that_two_folders_have_is_that_of_the_folder_that_is_included(
    tmp_path: Path,
) -> None:
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


def test_plans_and_commands_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [write_task(tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        told = serve_eval("data", "list", "tasks", "--include-path", folder)
        assert f"from {folder}/tasks/towns.py" in told.stdout
        assert told.returncode == 0, told.stderr

    def outside() -> list[str]:
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

    async def in_a_thread() -> list[str]:
        from contextvars import Context

        return await asyncio.get_running_loop().run_in_executor(
            None, lambda: Context().run(outside)
        )

    assert "towns" not in asyncio.run(in_a_thread()), "a fresh context must not have a scope"


def test_a_scoped_function_is_called_as_it_was(tmp_path: Path) -> None:
    folder = write_task(tmp_path)

    @with_scope
    def names(*, more: str) -> list[str]:
        """List the tasks."""
        extensions.include([more])
        return registry.names(TASKS)

    assert "towns" in names(more=str(folder))
    assert "towns" not in registry.names(TASKS)
    assert (names.__name__, names.__doc__) == ("names", "List the tasks.")
