"""The same command continues its unfinished run, and no other."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from serve_eval.storage.reports.folder_results import CONTINUED_DAYS
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

RUN = (
    *("run", "--launcher", "simulated", "--model", "m", "-t", "passkey_short"),
    *("--set", "passkey_short.num_samples=33", "--no-reference"),
)
KEPT = 12


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default folder of a run that ended after some answers."""
    monkeypatch.chdir(tmp_path)
    assert serve_eval(*RUN).returncode == 3
    [folder] = _folders()
    _break_off(folder)
    return folder


def _folders() -> list[Path]:
    return [one for one in sorted(Path("outputs").iterdir()) if not one.is_symlink()]


def _journal(folder: Path) -> Path:
    return folder / "samples/passkey_short.jsonl"


def _break_off(folder: Path) -> None:
    lines = _journal(folder).read_bytes().splitlines(keepends=True)
    _journal(folder).write_bytes(b"".join(lines[:KEPT]))
    (folder / "report.json").unlink()


def _is_continued(folder: Path, *more: str) -> bool:
    """Give the command again; it must either continue the folder or leave it as it is."""
    before = _journal(folder).read_bytes()
    done = serve_eval(*RUN, *more)
    said = f"serve-eval: continuing {folder}, which is unfinished" in done.stderr.split("\n")[0]
    assert _journal(folder).read_bytes().startswith(before)
    assert (_journal(folder).read_bytes() != before) == said
    assert said or len(_folders()) == 2
    return said


def test_the_same_command_continues_and_says_so_on_its_first_line(unfinished: Path) -> None:
    done = serve_eval(*RUN, "--concurrency", "3")
    assert done.returncode == 3
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"serve-eval: continuing {unfinished}, which is unfinished (last")
    assert first.endswith("to begin a new run: --new")
    assert _folders() == [unfinished]
    assert (unfinished / "report.json").exists()
    assert len(_journal(unfinished).read_bytes().splitlines()) == 33


def test_a_finished_run_is_never_continued(unfinished: Path) -> None:
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
def test_another_plan_or_a_new_run_is_not_a_continuation(
    unfinished: Path, more: tuple[str, ...]
) -> None:
    assert not _is_continued(unfinished, *more)


def test_a_run_that_goes_on_is_not_continued(unfinished: Path) -> None:
    with (unfinished / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not _is_continued(unfinished)


def test_a_run_of_some_days_ago_is_not_continued(unfinished: Path) -> None:
    for days, continued in ((CONTINUED_DAYS + 0.1, False), (CONTINUED_DAYS - 0.1, True)):
        then = time.time() - days * 86_400
        os.utime(_journal(unfinished), (then, then))
        assert _is_continued(unfinished) is continued


def test_a_run_that_someone_else_saved_is_not_continued(unfinished: Path) -> None:
    plan = unfinished / "plan.json"
    plan.write_text(plan.read_text().replace('"signature": "', '"signature": "0'))
    assert not _is_continued(unfinished)


def test_of_two_unfinished_runs_the_one_with_the_last_answer_is_continued(unfinished: Path) -> None:
    then = time.time() - 3600
    os.utime(_journal(unfinished), (then, then))
    serve_eval(*RUN, "--new")
    [newer] = set(_folders()) - {unfinished}
    _break_off(newer)
    assert serve_eval(*RUN).stderr.startswith(f"serve-eval: continuing {newer},")


def test_the_runs_of_a_reference_are_continued_too(unfinished: Path) -> None:
    words = ["references", "take", "--runs", "2", *RUN[1:-1]]
    assert serve_eval(*words).returncode == 0
    [folder] = [one for one in _folders() if one.name.endswith("_references")]
    _break_off(folder / "run_2")
    words += ["--reason", "again"]
    assert "continuing" not in serve_eval(*words).stderr, "it was registered"
    taken = folder / "references.json"
    taken.write_text(taken.read_text().replace('"registered": true', '"registered": false'))
    assert "continuing" not in serve_eval(*words, "--runs", "1").stderr
    done = serve_eval(*words)
    assert done.stderr.startswith(f"serve-eval: continuing {folder},"), done.stderr
