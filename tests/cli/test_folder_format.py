"""Commands read run folders of the current format and refuse newer ones with a clear message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from serve_eval.storage.json_files import FOLDER_FORMAT
from serve_eval.storage.reports.report_file import REPORT_SCHEMA
from serve_eval.storage.story_files import COMPARE
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")
COMMANDS = {
    "resume": ("run", "--resume", "RUN"),
    "verdict": ("judge", "RUN", "--set", "no_reference=true"),
    "rescore": ("judge", "--rescore", "RUN"),
    "compare": ("compare", "RUN", "RUN2", "-o", "OUT"),
    "diagnose": ("diagnose", "RUN"),
    "export": ("runs", "export", "RUN", "-o", "OUT"),
    "drift": ("runs", "trend", "DIR"),
    "register": ("references", "register", "RUN", "--references-dir", "OUT"),
    "capsule": ("show", "RUN", "SAMPLE", "--capsule", "-o", "OUT"),
    "power": ("references", "power", "--from", "RUN"),
}


@pytest.fixture(scope="module")
def finished(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("format") / "out"
    flags = [
        "run",
        "--launcher",
        "simulated",
        "--model",
        "org/m",
        "--tasks",
        "gsm8k",
        "--dataset-root",
        data_root,
    ]
    done = serve_eval(*flags, "--set", "gsm8k.num_samples=40", "--no-reference", "-o", out)
    assert done.returncode == 3, done.stderr
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "runs/second")
    return Path(shutil.copytree(finished, tmp_path / "runs/first"))


def _arguments(command: str, run: Path, finished: Path) -> list[str]:
    sample = json.loads((finished / "scores/gsm8k.jsonl").read_text().splitlines()[0])["id"]
    values = {
        "RUN": run,
        "RUN2": run.parent / "second",
        "OUT": run.parents[1] / "out",
        "DIR": run.parent,
    }
    return [
        str(values.get(word, sample if word == "SAMPLE" else word)) for word in COMMANDS[command]
    ]


def _change(file: Path, version: object) -> None:
    content = json.loads(file.read_text())
    content["schema_version"] = version
    if version is None:
        del content["schema_version"]
    file.write_text(json.dumps(content))


def test_a_run_folder_says_its_format(finished: Path) -> None:
    assert json.loads((finished / "plan.json").read_text())["schema_version"] == FOLDER_FORMAT
    assert json.loads((finished / "report.json").read_text())["schema_version"] == REPORT_SCHEMA


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_a_version_is_read(run: Path, finished: Path, command: str) -> None:
    _change(run / "plan.json", None)
    done = serve_eval(*_arguments(command, run, finished))
    assert done.returncode in (0, 3), done.stderr
    assert "has format" not in done.stdout + done.stderr
    assert f"left out: {run}" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_a_newer_format_is_refused(run: Path, finished: Path, command: str) -> None:
    newer = FOLDER_FORMAT + 1
    _change(run / "plan.json", newer)
    before = {
        file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != "lock"
    }
    done = serve_eval(*_arguments(command, run, finished))
    assert (
        f"first has format {newer}, but this version of serve-eval (" in done.stdout + done.stderr
    )
    assert f"reads formats up to {FOLDER_FORMAT}" in done.stdout + done.stderr
    if command == "drift":  # it charts the other runs and says why this one is left out
        assert (done.returncode, "left out" in done.stdout + done.stderr) == (0, True)
    else:
        assert (done.returncode, "or a newer one" in done.stderr) == (2, True), done.stderr
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize("command", ["compare", "diagnose", "export", "drift"])
def test_a_newer_report_is_refused(run: Path, finished: Path, command: str) -> None:
    _change(run / "report.json", REPORT_SCHEMA + 1)
    done = serve_eval(*_arguments(command, run, finished))
    assert f"report.json has format {REPORT_SCHEMA + 1}" in done.stdout + done.stderr
    assert done.returncode == (0 if command == "drift" else 2)


def test_a_newer_report_whose_fields_changed_is_told_by_its_version(
    run: Path, finished: Path
) -> None:
    (run / "report.json").write_text(
        json.dumps({"schema_version": REPORT_SCHEMA + 1, "everything": "else"})
    )
    done = serve_eval(*_arguments("compare", run, finished))
    assert (done.returncode, f"has format {REPORT_SCHEMA + 1}" in done.stderr) == (
        2,
        True,
    ), done.stderr


def test_a_folder_of_newer_runs_alone_says_why_nothing_is_charted(run: Path) -> None:
    for one in ("first", "second"):
        _change(run.parent / one / "plan.json", FOLDER_FORMAT + 1)
    done = serve_eval("runs", "trend", run.parent)
    assert (done.returncode, "no finished run" in done.stderr) == (2, True), done.stderr
    assert done.stderr.count(f"has format {FOLDER_FORMAT + 1}") == 2


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_the_folder_of_a_newer_comparison_is_refused(
    run: Path, finished: Path, command: str
) -> None:
    out, second = run.parents[1] / "out", run.parent / "second"
    done = serve_eval(*_arguments("compare", run, finished))
    assert done.returncode in (0, 3), done.stderr
    _change(out / "compare.json", COMPARE.version + 4)
    before = {
        file: file.read_bytes() for file in out.rglob("*") if file.is_file() and file.name != "lock"
    }
    done = (
        serve_eval("diagnose", out)
        if command == "diagnose"
        else serve_eval("compare", run, second, "-o", out)
    )
    assert (done.returncode, "or a newer one" in done.stderr) == (2, True), done.stderr
    assert (
        f"compare.json has format {COMPARE.version + 4}, but this version of serve-eval ("
        in done.stderr
    )
    assert "holds another comparison" not in done.stderr
    assert {file: file.read_bytes() for file in before} == before
