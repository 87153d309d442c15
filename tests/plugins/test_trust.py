"""A run with a task from the user's folder: what it records, and what must be named again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import WithheldCodeError
from serve_eval.evaluation.trust import adopt_code
from serve_eval.plan.again import permissions
from serve_eval.plugins import extensions, registry
from serve_eval.schema import Plan, Spec
from serve_eval.workflows.servers.daemon import identity
from tests.cli.command import serve_eval
from tests.plugins.conftest import forget, write_task

pytestmark = pytest.mark.usefixtures("simulated_here")

ASK = (
    "run",
    "--launcher",
    "simulated",
    "--set",
    "launcher.accuracy=1.0",
    "--model",
    "m",
    "--tasks",
    "towns",
)
HINT = "If you trust it: --include-path "


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a finished run of a task in a folder, which this process has then forgotten."""
    code = write_task(tmp_path / "code")
    done = serve_eval(*ASK, "--no-reference", "-o", tmp_path / "out", "--include-path", code)
    assert done.returncode == 3, done.stderr
    forget(monkeypatch)
    return tmp_path / "out"


def test_the_run_keeps_which_code_made_it(run: Path, tmp_path: Path) -> None:
    assert json.loads((run / "plan.json").read_text())["plan"]["include_path"] == [
        str(tmp_path / "code")
    ]
    report = json.loads((run / "report.json").read_text())
    kept = report["environment"]["extensions"]["tasks.towns"]
    assert kept["origin"] == f"{tmp_path}/code/tasks/towns.py"
    assert (
        json.loads((run / "environment.json").read_text())[0]["extensions"]["tasks.towns"] == kept
    )
    assert (
        f"tasks.towns is from {kept['origin']} (sha256 {kept['sha256'][:12]})" in report["warnings"]
    )


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--resume"),
        ("judge",),
        (
            "judge",
            "--rescore",
        ),
        ("references", "register", "--references-dir", "registered"),
    ],
)
def test_a_saved_folder_of_code_is_not_looked_into_until_it_is_named_anew(
    run: Path, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    monkeypatch.chdir(tmp_path)
    refused = serve_eval(*command, run)
    assert refused.returncode == 2
    assert (
        f"takes its task 'towns' from {code}, whose code runs only if you name the folder again"
        in refused.stderr
    )
    assert refused.stderr.endswith(f"{HINT}{code}\n")
    assert "towns" not in registry.names("serve_eval.tasks")
    allowed = serve_eval(*command, run, "--include-path", code)
    assert allowed.returncode in (0, 3), allowed.stderr
    assert "towns" in allowed.stdout
    if "register" in command:
        return  # registered runs are not registered again
    forget(monkeypatch)
    by_variable = serve_eval(*command, run, SERVE_EVAL_INCLUDE_PATH=str(code))
    assert by_variable.returncode == (2 if "--resume" in command else allowed.returncode), (
        by_variable.stderr
    )


def test_the_line_to_go_on_with_has_what_is_to_be_named_anew(tmp_path: Path) -> None:
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), include_path=("/a b", "/c"))
    assert permissions([plan, plan]) == " --include-path '/a b' --include-path /c"
    assert (
        permissions([replace(plan, include_path=(), allow_code_execution=True)])
        == " --allow-code-execution"
    )
    assert permissions([]) == ""


def test_the_folder_may_have_moved(run: Path, tmp_path: Path) -> None:
    answers = (run / "samples/towns.jsonl").read_bytes()
    moved = (tmp_path / "code").rename(tmp_path / "elsewhere")
    again = serve_eval("run", "--resume", run, "--include-path", moved)
    assert again.returncode == 3, again.stderr
    assert (run / "samples/towns.jsonl").read_bytes() == answers


def test_a_changed_file_is_told_where_the_answers_are_older(run: Path, tmp_path: Path) -> None:
    before = json.loads((run / "environment.json").read_text())[0]["extensions"]["tasks.towns"][
        "sha256"
    ][:12]
    (tmp_path / "code/tasks/_reading.py").write_text(
        "def said(text):\n    return text.strip().lower()\n"
    )
    told = serve_eval("judge", run, "--include-path", tmp_path / "code").stdout
    assert f"earlier answers were made with {before}" in told


def test_other_questions_under_its_name_are_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "code/tasks/towns.py"
    file.write_text(file.read_text().replace("Town {i}", "The place {i}"))
    done = serve_eval("run", "--resume", run, "--include-path", tmp_path / "code")
    assert done.returncode == 2
    assert "fingerprints.towns.samples: was" in done.stderr


def test_what_is_ours_needs_no_permission_of_a_plan_that_names_folders(tmp_path: Path) -> None:
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="gsm8k"),),
        include_path=(str(write_task(tmp_path)),),
    )
    assert adopt_code(plan, ()).include_path == ()
    with pytest.raises(WithheldCodeError, match=f"takes its task 'towns' from {tmp_path}, whose"):
        registry.load("serve_eval.tasks", "towns")


def test_a_suite_takes_folders_from_its_plans_or_the_flag_and_anew_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, file, out = write_task(tmp_path / "code"), tmp_path / "suite.yaml", tmp_path / "out"
    plan = (
        "{name: a, model: m, launcher: {name: simulated, accuracy: 1.0}, tasks: [towns],"
        " no_reference: true"
    )
    file.write_text(f"plans:\n  - {plan}, include_path: {code}}}\n")
    done = serve_eval("run", file, "-o", out)
    assert done.returncode == 3, done.stderr
    forget(monkeypatch)
    refused = serve_eval("run", "--resume", out)
    assert (refused.returncode, refused.stderr.endswith(f"{HINT}{code}\n")) == (2, True)
    assert serve_eval("run", "--resume", out, "--include-path", code).returncode == 3
    forget(monkeypatch)
    file.write_text(f"plans:\n  - {plan}}}\n")
    by_flag = serve_eval("run", file, "-o", tmp_path / "other", "--include-path", code)
    assert by_flag.returncode == 3, by_flag.stderr
    saved = json.loads((tmp_path / "other/runs/a/plan.json").read_text())
    assert saved["plan"]["include_path"] == [str(code)]


LAUNCHER = '''"""Mine: a launcher that starts nothing."""

from contextlib import asynccontextmanager


def commands(context, *, port: int = 8000):
    return [["my-server", "--port", str(port)]]


@asynccontextmanager
async def launch(context, *, port: int = 8000):
    yield
'''


def test_held_servers_are_the_same_only_while_their_launcher_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "launchers").mkdir()
    file = tmp_path / "launchers/mine.py"
    plan = Plan(model="m", launcher=Spec(name="mine"), tasks=(), include_path=(str(tmp_path),))
    found = []
    for text in (LAUNCHER, LAUNCHER, LAUNCHER.replace("my-server", "another")):
        file.write_text(text)
        extensions.include(plan.include_path)
        found.append(identity(plan))
        forget(monkeypatch)
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)
    shown = serve_eval(
        "serve",
        "mine",
        "--model",
        "m",
        "--set",
        "launcher.port=1",
        "--dry-run",
        "--include-path",
        tmp_path,
    )
    assert "my-server --port 1" in shown.stdout or "another --port 1" in shown.stdout, shown.stderr
