"""Runs in one process that take code from different folders: none sees that of another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serve_eval.cases.questions import scorer_of
from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.plan.resolve import resolve
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.scope import scope, scoped
from serve_eval.schema import Plan, Report, Spec
from tests.cli.command import serve_eval
from tests.plugins.conftest import write_task

pytestmark = pytest.mark.usefixtures("simulated_here")
TASKS = "serve_eval.tasks"
SCORER = """
from serve_eval.schema import Outcome, Score


def scorer():
    return "{told}"
"""


def _plan(*folders: Path) -> Plan:
    launcher = Spec(name="simulated", options={"accuracy": 1.0})
    paths = tuple(map(str, folders))
    return Plan(model="m", launcher=launcher, tasks=(Spec(name="towns"),), include_path=paths, no_reference=True)


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
        assert _origin(judge_again(_plan(folder), tmp_path / f"out_{folder.name}")) == str(folder / "tasks/towns.py")
    with pytest.raises(PlanError, match="unknown task 'towns'"):
        asyncio.run(evaluate(_plan(), tmp_path / "out"))
    assert (extensions.included(), extensions.loaded()) == ((), {})
    with pytest.raises(PlanError, match=f"two offer the task 'towns': {one}/tasks/towns.py and {two}/tasks/towns.py"):
        asyncio.run(evaluate(_plan(one, two), tmp_path / "both"))


def test_two_runs_that_take_turns_have_each_the_task_of_its_own_folder(tmp_path: Path) -> None:
    folders = [write_task(tmp_path / name) for name in ("one", "two")]

    async def both() -> list[Report]:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(evaluate(_plan(folder), tmp_path / f"out_{folder.name}")) for folder in folders]
        return [run.result() for run in runs]

    assert [_origin(report) for report in asyncio.run(both())] == [str(one / "tasks/towns.py") for one in folders]


def test_a_run_that_fails_leaves_nothing_of_its_folder(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one")
    with pytest.raises(PlanError, match="unknown launcher 'nowhere'"):
        asyncio.run(evaluate(Plan(**{**_as_dict(_plan(folder)), "launcher": Spec(name="nowhere")}), tmp_path / "out"))
    assert "towns" not in registry.names(TASKS)


def _as_dict(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_a_run_has_the_folders_of_the_command_around_it_and_what_that_loaded(tmp_path: Path) -> None:
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two", name="cities")
    with scope():
        extensions.include([str(two)])
        registry.load(TASKS, "cities")
        report = asyncio.run(evaluate(_plan(one), tmp_path / "out"))
        assert set(report.environment["extensions"]) == {"tasks.cities", "tasks.towns"}  # type: ignore[call-overload]
        assert (extensions.included(), list(extensions.loaded())) == ((str(two),), ["tasks.cities"])
    assert (extensions.included(), extensions.loaded()) == ((), {})


def test_a_scorer_that_two_folders_have_is_that_of_the_folder_that_is_included(tmp_path: Path) -> None:
    told = []
    for name in ("one", "two", "one"):
        (tmp_path / name / "scorers").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "scorers/close.py").write_text(SCORER.format(told=name))
        with scope():
            extensions.include([str(tmp_path / name)])
            told.append(scorer_of(Spec(name="close")))
            assert scorer_of(Spec(name="close")) is told[-1]
            assert list(extensions.loaded()) == ["scorers.close"]
    assert told == ["one", "two", "one"]


def test_plans_and_commands_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [write_task(tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        told = serve_eval("list", "tasks", "--include-path", folder)
        assert f"from {folder}/tasks/towns.py" in told.stdout
        assert told.returncode == 0, told.stderr

    def outside() -> list[str]:
        for folder in folders:
            resolve({"tasks": ["towns"], "model": "m", "include_path": str(folder), "no_reference": True}, {}, {})
        return registry.names(TASKS)

    async def in_a_thread() -> list[str]:
        from contextvars import Context

        return await asyncio.get_running_loop().run_in_executor(None, lambda: Context().run(outside))

    assert "towns" not in asyncio.run(in_a_thread()), "nor is there a scope around it"


def test_a_scoped_function_is_called_as_it_was(tmp_path: Path) -> None:
    folder = write_task(tmp_path)

    @scoped
    def names(*, more: str) -> list[str]:
        """Told."""
        extensions.include([more])
        return registry.names(TASKS)

    assert "towns" in names(more=str(folder))
    assert "towns" not in registry.names(TASKS)
    assert (names.__name__, names.__doc__) == ("names", "Told.")
