"""Test what the user's own folders provide, and foreign packages that do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import extensions, registry
from serve_eval.protocol.shared import build_task
from serve_eval.report.document.listing import LINES
from serve_eval.schema import Spec
from tests.cli.command import environment, serve_eval
from tests.plugins.conftest import write_task
from tests.root import ROOT

TASKS = "serve_eval.tasks"


def test_a_file_of_a_folder_is_offered_with_its_origin_and_our_own_stay(tmp_path):
    before, path = registry.names(TASKS), list(sys.path)
    extensions.include([str(write_task(tmp_path))])
    assert registry.names(TASKS) == sorted([*before, "towns"])
    assert [origin.place for origin in extensions.find(TASKS, "towns")] == [
        str(tmp_path / "tasks/towns.py")
    ]
    # Code runs only when it is named.
    assert not [name for name in sys.modules if name.endswith(".towns")]
    assert build_task(Spec(name="towns", options={"num_samples": 3})).hypothesis.num_samples == 3
    assert registry.summary(TASKS, "towns") == "Towns: an example of a task in a folder."
    assert sys.path == path
    assert not {"towns", "tasks", "_reading"} & set(sys.modules)


def test_two_folders_may_have_files_of_their_own_under_one_name(tmp_path):
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two", "cities")
    (two / "tasks/_reading.py").write_text("def said(text):\n    return 'another'\n")
    extensions.include([str(one), str(two), str(one)])
    makers = [sys.modules[registry.load(TASKS, name).__module__] for name in ("towns", "cities")]
    assert [module.said("x") for module in makers] == ["x", "another"]


def test_a_name_that_two_offer_is_an_error_that_names_both_and_costs_no_other(
    tmp_path,
):
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two")
    write_task(two, "gsm8k")
    extensions.include([str(one), str(two)])
    with pytest.raises(PlanError) as caught:
        registry.load(TASKS, "towns")
    assert (
        str(caught.value)
        == f"two places offer the task 'towns': {one}/tasks/towns.py and {two}/tasks/towns.py"
    )
    with pytest.raises(
        PlanError,
        match=f"two places offer the task 'gsm8k': serve-eval itself and {two}/tasks/gsm8k.py",
    ):
        build_task(Spec(name="gsm8k"))
    assert build_task(Spec(name="mmlu")).name == "mmlu"


def test_an_installed_package_that_clashes_is_named(tmp_path, monkeypatch):
    extensions.include([str(write_task(tmp_path))])
    point = EntryPoint(name="towns", value="others.towns", group="serve_eval.tasks")
    monkeypatch.setattr(extensions, "_points", lambda folder: (point,) if folder == TASKS else ())
    with pytest.raises(PlanError, match=r"tasks/towns.py and others.towns of an unknown package"):
        registry.load(TASKS, "towns")


def test_an_entry_point_to_nothing_is_told(monkeypatch):
    points = (
        EntryPoint(name="gone", value="nowhere.at_all", group="serve_eval.tasks"),
        EntryPoint(name="other", value="serve_eval.errors:Nothing", group="serve_eval.tasks"),
        EntryPoint(name="plain", value="serve_eval.errors", group="serve_eval.tasks"),
    )
    monkeypatch.setattr(extensions, "_points", lambda folder: points if folder == TASKS else ())
    for name, said in (
        (
            "gone",
            "nowhere.at_all of an unknown package: ModuleNotFoundError: No module named 'nowhere'",
        ),
        (
            "other",
            (
                "serve_eval.errors:Nothing of an unknown package: AttributeError: module"
                " 'serve_eval.errors' has no"
            ),
        ),
        ("plain", "serve_eval.errors of an unknown package: has no function task"),
    ):
        with pytest.raises(PlanError) as caught:
            registry.load(TASKS, name)
        assert str(caught.value).startswith(said)


BAD = {
    "syntax": ("x = 1\ndef task(:\n", "syntax.py:2: SyntaxError: "),
    "raises": ("import json\n\njson.loads('{')\n", "raises.py:3: JSONDecodeError: "),
    "absent": (
        "import not_there_at_all\n",
        "absent.py:1: ModuleNotFoundError: No module named 'not_there_at_all'",
    ),
    "deeper": ("from . import _deep\n", "_deep.py:2: ZeroDivisionError: division by zero"),
    "exits": ("import sys\nsys.exit(3)\n", "exits.py:2: SystemExit: 3"),
    "empty": ("", "empty.py: has no function task(*, ...)"),
    "constant": ("task = 3\n", "constant.py: has no function task(*, ...)"),
    "untyped": (
        "def task(*, shots=5): ...\n",
        "untyped.py: task: annotate the types of its options: shots",
    ),
    "unknown": (
        "from __future__ import annotations\ndef task(*, shots: Ints = 5): ...\n",
        "unknown.py: task: the types of its options cannot be read: name 'Ints' is not defined",
    ),
}


@pytest.fixture
def bad(tmp_path):
    folder = write_task(tmp_path / "bad")
    for name, (text, _) in BAD.items():
        (folder / f"tasks/{name}.py").write_text(text)
    (folder / "tasks/_deep.py").write_text("x = 0\n1 / x\n")
    return folder


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_task_is_an_error_with_its_line(bad, name):
    extensions.include([str(bad)])
    with pytest.raises(PlanError) as caught:
        registry.load(TASKS, name)
    assert str(caught.value).startswith(f"{bad}/tasks/{BAD[name][1]}")


def test_the_list_tells_what_is_wrong_and_lists_the_others(bad):
    few = serve_eval("data", "list", "tasks", "--include-path", bad)
    assert (few.returncode, len(few.stdout.splitlines()) <= LINES) == (2, True)
    assert f"\n  absent: error: {bad}/tasks/absent.py:1: Mod" in few.stdout
    told = serve_eval("data", "list", "tasks", "--include-path", bad, "-v")
    assert told.returncode == 2
    assert "Traceback" not in told.stdout + told.stderr
    for name, (_, said) in BAD.items():
        assert f"\n  {name}: error: {bad}/tasks/{said}" in told.stdout
    assert (
        f"\n  towns: Towns: an example of a task in a folder.\n      from {bad}/tasks/towns.py\n"
        in told.stdout
    )
    assert "\n  gsm8k: GSM8K: " in told.stdout
    assert serve_eval("data", "list", "verdicts", SERVE_EVAL_INCLUDE_PATH=str(bad)).returncode == 0


def test_tasks_in_lm_evals_format_are_listed_with_their_files(tmp_path):
    folder = tmp_path / "lm_eval" / "inner"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(
        "include: b\ntask: rain_fall  # of a year\nprocess_docs: !function a.b\n"
    )
    (folder / "b.yaml").write_text("task: 'snow.fall'\n")
    (folder / "_c.yaml").write_text("num_fewshot: 1\n")
    (folder / "d.yaml").write_text("group: weather\ntask: rain_fall\n")
    (folder / "e.yaml").write_text("task:\n  - rain_fall\n")
    extensions.include([str(tmp_path)])
    assert extensions.lm_eval_tasks() == [
        ("rain_fall", folder / "a.yaml"),
        ("snow.fall", folder / "b.yaml"),
    ]
    told = serve_eval("data", "list", "tasks", "--include-path", str(tmp_path))
    assert f"  lm_eval:rain_fall\n      from {folder / 'a.yaml'}\n" in told.stdout


def test_a_task_that_makes_something_else_is_refused(tmp_path):
    write_task(tmp_path)
    (tmp_path / "tasks/renamed.py").write_text((tmp_path / "tasks/towns.py").read_text())
    (tmp_path / "tasks/nothing.py").write_text("def task(): ...\n")
    extensions.include([str(tmp_path)])
    for name, said in (
        ("renamed", "made the task 'towns' instead of a task of that name: .*/tasks/renamed.py"),
        ("nothing", r"/tasks/nothing.py:1: task\(\) must return a Task of .*, not None"),
    ):
        with pytest.raises(PlanError, match=said):
            build_task(Spec(name=name))


def test_a_launcher_has_to_say_what_it_would_start(tmp_path):
    (tmp_path / "launchers").mkdir()
    (tmp_path / "launchers/mine.py").write_text("async def launch(context): ...\n")
    extensions.include([str(tmp_path)])
    with pytest.raises(
        PlanError, match=r"launchers/mine.py: launch: its file has no function commands"
    ):
        registry.load("serve_eval.launchers", "mine")


@pytest.mark.parametrize(
    ("kind", "text", "handed"),
    [
        ("tasks", "def task(a, b, *, n: int = 1): ...\n", "0 or 1 arguments .*a, b"),
        ("scorers", "def scorer(expected, response): ...\n", "0 arguments .*expected, response"),
        ("launchers", "def launch(): ...\ndef commands(context): ...\n", "1 arguments"),
        (
            "verdicts",
            "def judge(result, reference, hypothesis): ...\n",
            "4 arguments .*result, reference, hypothesis",
        ),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_a_run(tmp_path, kind, text, handed):
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "odd.py").write_text(text)
    extensions.include([str(tmp_path)])
    package = next(package for package, title in extensions.KINDS.items() if title == kind)
    with pytest.raises(PlanError, match=rf"odd\.py: .*must take {handed}"):
        registry.function(package, "odd")


def test_what_is_no_such_folder_is_told_with_the_other_problems_of_a_plan(tmp_path):
    (tmp_path / "plain").mkdir()
    paths = [str(tmp_path / "plain"), str(tmp_path / "none")]
    with pytest.raises(PlanError) as caught:
        resolve({"tasks": ["towns"], "include_path": paths, "model": "m", "modle": "m"}, {}, {})
    assert caught.value.problems == [
        "modle: unknown key. Did you mean 'model'?",
        (
            f"include_path: {paths[0]} has none of the subfolders tasks, scorers, launchers,"
            " verdicts, lm_eval"
        ),
        f"include_path: {paths[1]} is not a folder",
    ]  # that the task is unknown follows from these


def test_what_is_wrong_with_a_folder_of_a_plan_file_is_told_with_its_line(tmp_path):
    (tmp_path / "plan.yaml").write_text(f"tasks: [mmlu]\nmodel: m\ninclude_path: {tmp_path}/none\n")
    told = serve_eval("run", tmp_path / "plan.yaml", "--dry-run")
    said = f"error: {tmp_path}/plan.yaml:3: include_path: {tmp_path}/none is not a folder\n"
    assert (told.returncode, told.stderr) == (2, said)


def test_a_path_that_is_none_is_told(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in ("a\0b", str(loop)):
        with pytest.raises(PlanError, match=r"include_path: .* (cannot be read|is not a folder)"):
            extensions.include([path])


def test_a_plan_finds_its_folders_from_the_working_directory_and_keeps_the_full_path(
    tmp_path, monkeypatch
):
    write_task(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    plan = resolve({"tasks": ["towns"], "include_path": "mine", "model": "m"}, {}, {}).plan
    assert plan.include_path == (str(tmp_path / "mine"),)
    flagged = resolve(
        {"tasks": ["towns"], "include_path": "none"}, {"include_path": ["mine"]}, {}
    ).plan
    assert flagged.include_path == plan.include_path


def test_an_unexpected_error_is_that_of_the_code_it_came_through(tmp_path):
    folder = write_task(tmp_path)
    file = folder / "tasks/towns.py"
    file.write_text(file.read_text().replace("return Dataset(", "return wanted / 0 or Dataset("))
    line = next(
        i for i, text in enumerate(file.read_text().splitlines(), 1) if "wanted / 0" in text
    )
    asked = ["run", "--launcher", "simulated", "--tasks", "towns", "--no-reference", "--dry-run"]
    done = serve_eval(*asked, "--include-path", folder)
    assert done.returncode == 4
    assert done.stderr.endswith(
        "error: unexpected ZeroDivisionError: division by zero\n"
        f"This is a defect of {file}:{line}. Set SERVE_EVAL_TRACEBACK=1 to see the traceback.\n"
    )


FOREIGN = "raise SystemExit('the code of others was run')\n"


def _serve_eval(at, *path, command: tuple[str, ...] = ("data", "list", "launchers")):
    """Run the command in an empty folder, with these folders first on `sys.path`."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "serve_eval", *command],
        env=environment(PYTHONPATH=os.pathsep.join(map(str, path)), PYTHONDONTWRITEBYTECODE="1"),
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("file", ["launchers/__init__.py", "launchers.py"])
def test_one_that_is_found_first_does_no_harm_and_does_not_run(tmp_path, file):
    other = tmp_path / "site" / file
    other.parent.mkdir(parents=True)
    other.write_text(FOREIGN)
    code, out, err = _serve_eval(tmp_path, tmp_path / "site", ROOT)
    assert (code, err) == (0, "")
    assert "\n  trtllm: " in out
