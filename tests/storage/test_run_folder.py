from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.schema import Connection, Limits, Plan, Spec
from serve_eval.storage.json_files import differences, write_private
from serve_eval.storage.run_folder import open_folder, read_plan

PLAN = Plan(
    model="m",
    launcher=Spec(name="external", options={"base_url": "http://h/v1"}),
    tasks=(Spec(name="gsm8k", options={"num_fewshot": 5}),),
)
PRINTS = {"gsm8k": {"dataset_sha256": "aa"}}


def _answered(folder: Path) -> None:
    """Store an answer, which binds the folder to its plan."""
    (folder / "samples" / "gsm8k.jsonl").write_text('{"id":"1"}\n')


def test_the_same_plan_opens_the_folder_again(tmp_path: Path) -> None:
    for _ in range(2):
        with open_folder(tmp_path / "out", PLAN, PRINTS) as folder:
            assert (folder / "samples").is_dir()
    assert read_plan(tmp_path / "out") == PLAN


@pytest.mark.parametrize(
    ("plan", "prints", "message"),
    [
        (replace(PLAN, model="other"), PRINTS, r'plan\.model: was "m", now "other"'),
        (
            replace(PLAN, tasks=(Spec(name="gsm8k", options={"num_fewshot": 3}),)),
            PRINTS,
            r"plan\.tasks\.gsm8k\.num_fewshot: was 5, now 3",
        ),
        (replace(PLAN, limit=10), PRINTS, r"plan\.limit: was null, now 10"),
        (
            PLAN,
            {"gsm8k": {"dataset_sha256": "bb"}},
            r'fingerprints\.gsm8k\.dataset_sha256: was "aa", now "bb"',
        ),
    ],
)
def test_another_plan_is_refused_naming_the_field(
    tmp_path: Path, plan: Plan, prints: dict[str, dict[str, str]], message: str
) -> None:
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    with pytest.raises(RunFolderError, match=message), open_folder(tmp_path, plan, prints):
        pass


def test_limits_and_the_way_to_the_endpoint_may_differ(tmp_path: Path) -> None:
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    other = replace(
        PLAN,
        limits=Limits(concurrency=2),
        connection=Connection(proxy="http://p"),
        dataset_roots=("/x",),
    )
    with open_folder(tmp_path, other, PRINTS):
        pass


def test_a_run_without_any_answer_yet_takes_another_plan(tmp_path: Path) -> None:
    with open_folder(tmp_path, PLAN, PRINTS):
        pass
    other = replace(PLAN, model="corrected")
    with open_folder(tmp_path, other, PRINTS):
        pass
    assert read_plan(tmp_path) == other


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        ('{"id":"1","failure":{"kind":"http"}}\n', False),
        ('{"id":"1","failure":{"kind":"http"}}\n{"id":"2","response"', False),
        ('{"id":"1","failure":{"kind":"http"}}\n{"id": "2", "response": {}}\n', True),
        ('{"id":"1","withdrawn":"unproven"}\n', True),
        ("damaged\n", True),
    ],
)
def test_failures_alone_bind_no_plan_and_leave_with_it(
    record: str, kept: bool, tmp_path: Path
) -> None:
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        (folder / "samples/gsm8k.jsonl").write_text(record)
        (folder / "report.json").write_text("{}")
    other = replace(PLAN, model="corrected")
    if kept:
        with (
            pytest.raises(RunFolderError, match="holds another run"),
            open_folder(tmp_path, other, PRINTS),
        ):
            pass
        assert (tmp_path / "samples/gsm8k.jsonl").read_text() == record
        return
    with open_folder(tmp_path, other, PRINTS):
        pass
    assert read_plan(tmp_path) == other
    assert not (tmp_path / "samples/gsm8k.jsonl").exists()
    assert not (tmp_path / "report.json").exists()


def test_a_run_grows_by_tasks_only_where_that_is_meant(tmp_path: Path) -> None:
    more = replace(PLAN, tasks=(Spec(name="mmlu"), *PLAN.tasks))
    prints = {**PRINTS, "mmlu": {"dataset_sha256": "cc"}}
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    with pytest.raises(RunFolderError, match=r"tasks\.mmlu"), open_folder(tmp_path, more, prints):
        pass
    with open_folder(tmp_path, more, prints, grows=True):
        pass
    assert read_plan(tmp_path) == more
    with open_folder(tmp_path, PLAN, PRINTS, grows=True):  # mmlu has no answer yet
        pass
    assert read_plan(tmp_path) == PLAN


def test_a_run_may_go_on_at_another_address_only_when_told_so(tmp_path: Path) -> None:
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    other = replace(PLAN, launcher=Spec(name="external", options={"base_url": "http://new/v1"}))
    with pytest.raises(RunFolderError, match="base_url"), open_folder(tmp_path, other, PRINTS):
        pass
    with open_folder(tmp_path, other, PRINTS, moved=True):
        pass


def test_a_plan_of_an_older_version_is_read_with_the_defaults_of_what_was_added(
    tmp_path: Path,
) -> None:
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    stored = json.loads((tmp_path / "plan.json").read_text())
    del stored["plan"]["seed"]
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    with open_folder(tmp_path, PLAN, PRINTS):
        pass


def test_a_folder_with_other_files_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="not empty"), open_folder(tmp_path, PLAN, PRINTS):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_a_kill_left_without_its_plan_is_taken_again(tmp_path: Path) -> None:
    (tmp_path / "plan.json.partial").write_text("{")
    (tmp_path / "lock").touch()
    with open_folder(tmp_path, PLAN, PRINTS):
        assert read_plan(tmp_path) == PLAN


def test_two_runs_cannot_have_one_folder_and_a_killed_one_leaves_it_free(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from serve_eval.storage.run_folder"
        " import open_folder;from tests.storage.test_run_folder import PLAN,"
        f" PRINTS\nwith open_folder(Path({str(tmp_path / 'out')!r}), PLAN, PRINTS): print('locked',"
        " flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with (
            pytest.raises(
                RunFolderError, match=f"in use by another run \\(process {holder.pid}\\)"
            ),
            open_folder(tmp_path / "out", PLAN, PRINTS),
        ):
            pass
        holder.kill()
    with open_folder(tmp_path / "out", PLAN, PRINTS):
        pass


def test_files_are_private_and_the_folder_too(tmp_path: Path) -> None:
    write_private(tmp_path / "x", b"1")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    with open_folder(tmp_path / "out", PLAN, PRINTS) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        for path in folder.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_plan(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_of_ours() -> None:
    with (
        pytest.raises(RunFolderError, match="cannot be used"),
        open_folder(Path("/proc/nope"), PLAN, PRINTS),
    ):
        pass


def test_differences_name_new_and_lost_fields() -> None:
    assert differences({"a": 1, "b": [1, 2]}, {"b": [1, 3], "c": None}) == [
        "a: was 1, now null",
        "b[1]: was 2, now 3",
    ]
