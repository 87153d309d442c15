"""Test that commands continue unfinished run folders, and refuse those of newer formats."""

import fcntl
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from serve_eval.storage.folder_results import CONTINUED_DAYS
from serve_eval.storage.json_files import FOLDER_FORMAT
from serve_eval.storage.report_file import REPORT_SCHEMA
from serve_eval.storage.story_files import COMPARE
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

RUN = (
    *("run", "--launcher", "simulated", "--model", "m", "-t", "passkey_short"),
    *("--set", "passkey_short.num_samples=33", "--no-reference"),
)
KEPT = 12


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """Return the default folder of a run that ended after some answers."""
    monkeypatch.chdir(tmp_path)
    serve_eval(*RUN, exits=3)
    [folder] = _folders()
    _break_off(folder)
    return folder


def _folders():
    return [one for one in sorted(Path("outputs").iterdir()) if not one.is_symlink()]


def _journal(folder):
    return folder / "samples/passkey_short.jsonl"


def _break_off(folder):
    lines = _journal(folder).read_bytes().splitlines(keepends=True)
    _journal(folder).write_bytes(b"".join(lines[:KEPT]))
    (folder / "report.json").unlink()


def _is_continued(folder, *more):
    """Give the command again; it must either continue the folder or leave it as it is."""
    before = _journal(folder).read_bytes()
    done = serve_eval(*RUN, *more)
    said = f"serve-eval: continuing {folder}, which is unfinished" in done.stderr.split("\n")[0]
    assert _journal(folder).read_bytes().startswith(before)
    assert (_journal(folder).read_bytes() != before) == said
    assert said or len(_folders()) == 2
    return said


def test_the_same_command_continues_and_says_so_on_its_first_line(unfinished):
    done = serve_eval(*RUN, "--concurrency", "3", exits=3)
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"serve-eval: continuing {unfinished}, which is unfinished (last")
    assert first.endswith("to begin a new run: --new")
    assert _folders() == [unfinished]
    assert (unfinished / "report.json").exists()
    assert len(_journal(unfinished).read_bytes().splitlines()) == 33


def test_a_finished_run_is_never_continued(unfinished):
    assert _is_continued(unfinished)
    assert not _is_continued(unfinished)


@pytest.mark.parametrize(
    "more",
    [
        ("--new",),
        ("--rerun", "all"),
        ("--model", "other"),
        ("--set", "launcher.accuracy=0.5"),
        ("--temperature", "0.5"),
        ("--limit", "20"),
        ("--set", "passkey_short.random_seed=1"),
    ],
)
def test_another_plan_or_a_new_run_is_not_a_continuation(unfinished, more):
    assert not _is_continued(unfinished, *more)


def test_a_run_that_goes_on_is_not_continued(unfinished):
    with (unfinished / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not _is_continued(unfinished)


def test_a_run_of_some_days_ago_is_not_continued(unfinished):
    for days, continued in ((CONTINUED_DAYS + 0.1, False), (CONTINUED_DAYS - 0.1, True)):
        then = time.time() - days * 86_400
        os.utime(_journal(unfinished), (then, then))
        assert _is_continued(unfinished) is continued


def test_a_run_that_someone_else_saved_is_not_continued(unfinished):
    plan = unfinished / "plan.json"
    plan.write_text(plan.read_text().replace('"signature": "', '"signature": "0'))
    assert not _is_continued(unfinished)


def test_of_two_unfinished_runs_the_one_with_the_last_answer_is_continued(unfinished):
    then = time.time() - 3600
    os.utime(_journal(unfinished), (then, then))
    serve_eval(*RUN, "--new")
    [newer] = set(_folders()) - {unfinished}
    _break_off(newer)
    assert serve_eval(*RUN).stderr.startswith(f"serve-eval: continuing {newer},")


def test_the_runs_of_a_reference_are_continued_too(unfinished):
    words = ["references", "take", "--runs", "2", *RUN[1:-1]]
    serve_eval(*words, exits=0)
    [folder] = [one for one in _folders() if one.name.endswith("_references")]
    _break_off(folder / "run_2")
    words += ["--reason", "again"]
    assert "continuing" not in serve_eval(*words).stderr, "it was registered"
    taken = folder / "references.json"
    taken.write_text(taken.read_text().replace('"registered": true', '"registered": false'))
    assert "continuing" not in serve_eval(*words, "--runs", "1").stderr
    done = serve_eval(*words)
    assert done.stderr.startswith(f"serve-eval: continuing {folder},"), done.stderr


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
def finished(data_root, tmp_path_factory):
    out = tmp_path_factory.mktemp("format") / "out"
    flags = f"run --launcher simulated --model org/m --tasks gsm8k --dataset-root {data_root}"
    serve_eval(f"{flags} --set gsm8k.num_samples=40 --no-reference -o {out}", exits=3)
    return out


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs/second")
    return Path(shutil.copytree(finished, tmp_path / "runs/first"))


def _arguments(command, run, finished):
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


def _change(file, version):
    content = read_json(file)
    content["schema_version"] = version
    if version is None:
        del content["schema_version"]
    file.write_text(json.dumps(content))


def test_a_run_folder_says_its_format(finished):
    assert read_json(finished / "plan.json")["schema_version"] == FOLDER_FORMAT
    assert read_json(finished / "report.json")["schema_version"] == REPORT_SCHEMA


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_a_version_is_read(run, finished, command):
    _change(run / "plan.json", None)
    done = serve_eval(*_arguments(command, run, finished))
    assert done.returncode in (0, 3), done.stderr
    assert "has format" not in done.stdout + done.stderr
    assert f"left out: {run}" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_a_newer_format_is_refused(run, finished, command):
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
def test_a_newer_report_is_refused(run, finished, command):
    _change(run / "report.json", REPORT_SCHEMA + 1)
    done = serve_eval(*_arguments(command, run, finished))
    assert f"report.json has format {REPORT_SCHEMA + 1}" in done.stdout + done.stderr
    assert done.returncode == (0 if command == "drift" else 2)


def test_a_newer_report_whose_fields_changed_is_told_by_its_version(run, finished):
    (run / "report.json").write_text(
        json.dumps({"schema_version": REPORT_SCHEMA + 1, "everything": "else"})
    )
    serve_eval(
        *_arguments("compare", run, finished), exits=2, tells=f"has format {REPORT_SCHEMA + 1}"
    )


def test_a_folder_of_newer_runs_alone_says_why_nothing_is_charted(run):
    for one in ("first", "second"):
        _change(run.parent / one / "plan.json", FOLDER_FORMAT + 1)
    done = serve_eval(f"runs trend {run.parent}", exits=2, tells="no finished run")
    assert done.stderr.count(f"has format {FOLDER_FORMAT + 1}") == 2


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_the_folder_of_a_newer_comparison_is_refused(run, finished, command):
    out, second = run.parents[1] / "out", run.parent / "second"
    done = serve_eval(*_arguments("compare", run, finished))
    assert done.returncode in (0, 3), done.stderr
    _change(out / "compare.json", COMPARE.version + 4)
    before = {
        file: file.read_bytes() for file in out.rglob("*") if file.is_file() and file.name != "lock"
    }
    done = (
        serve_eval(f"diagnose {out}")
        if command == "diagnose"
        else serve_eval(f"compare {run} {second} -o {out}")
    )
    assert (done.returncode, "or a newer one" in done.stderr) == (2, True), done.stderr
    assert (
        f"compare.json has format {COMPARE.version + 4}, but this version of serve-eval ("
        in done.stderr
    )
    assert "holds another comparison" not in done.stderr
    assert {file: file.read_bytes() for file in before} == before
