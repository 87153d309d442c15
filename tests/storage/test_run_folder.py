"""Test the format of a run folder and the signature of its owner.

The error names the version. The files of a run and of a suite have readers of their own.
"""

import json
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.schema import Connection, Limits, Plan, Spec
from serve_eval.storage import story_results
from serve_eval.storage.json_files import differences, write_private
from serve_eval.storage.ownership import add_signature, has_key, is_own
from serve_eval.storage.run_folder import open_folder, read_plan
from serve_eval.storage.story_files import (
    ATTRIBUTE,
    COMPARE,
    INVARIANTS,
    RUN,
    STORIES,
    SUITE,
    TOOLS,
    find_maker,
)

PLAN = Plan(
    model="m",
    launcher=Spec(name="external", options={"base_url": "http://h/v1"}),
    tasks=(Spec(name="gsm8k", options={"num_fewshot": 5}),),
)
PRINTS = {"gsm8k": {"dataset_sha256": "aa"}}


def _answered(folder):
    """Store an answer, which binds the folder to its plan."""
    (folder / "samples" / "gsm8k.jsonl").write_text('{"id":"1"}\n')


def test_the_same_plan_opens_the_folder_again(tmp_path):
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
def test_another_plan_is_refused_naming_the_field(tmp_path, plan, prints, message):
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    with pytest.raises(RunFolderError, match=message), open_folder(tmp_path, plan, prints):
        pass


def test_limits_and_the_way_to_the_endpoint_may_differ(tmp_path):
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


def test_a_run_without_any_answer_yet_takes_another_plan(tmp_path):
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
def test_failures_alone_bind_no_plan_and_leave_with_it(record, kept, tmp_path):
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


def test_a_run_grows_by_tasks_only_where_that_is_meant(tmp_path):
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


def test_a_run_may_go_on_at_another_address_only_when_told_so(tmp_path):
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    other = replace(PLAN, launcher=Spec(name="external", options={"base_url": "http://new/v1"}))
    with pytest.raises(RunFolderError, match="base_url"), open_folder(tmp_path, other, PRINTS):
        pass
    with open_folder(tmp_path, other, PRINTS, moved=True):
        pass


def test_a_plan_of_an_older_version_is_read_with_the_defaults_of_what_was_added(
    tmp_path,
):
    with open_folder(tmp_path, PLAN, PRINTS) as folder:
        _answered(folder)
    stored = json.loads((tmp_path / "plan.json").read_text())
    del stored["plan"]["seed"]
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    with open_folder(tmp_path, PLAN, PRINTS):
        pass


def test_a_folder_with_other_files_is_not_taken_over(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="not empty"), open_folder(tmp_path, PLAN, PRINTS):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_a_kill_left_without_its_plan_is_taken_again(tmp_path):
    (tmp_path / "plan.json.partial").write_text("{")
    (tmp_path / "lock").touch()
    with open_folder(tmp_path, PLAN, PRINTS):
        assert read_plan(tmp_path) == PLAN


def test_two_runs_cannot_have_one_folder_and_a_killed_one_leaves_it_free(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from serve_eval.storage.run_folder"
        " import open_folder;from tests.storage.test_run_folder import PLAN,"
        f" PRINTS\nwith open_folder(Path({str(tmp_path / 'out')!r}), PLAN, PRINTS): print('locked',"
        " flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as holder:
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


def test_files_are_private_and_the_folder_too(tmp_path):
    write_private(tmp_path / "x", b"1")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    with open_folder(tmp_path / "out", PLAN, PRINTS) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        for path in folder.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_plan(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_of_ours():
    with (
        pytest.raises(RunFolderError, match="cannot be used"),
        open_folder(Path("/proc/nope"), PLAN, PRINTS),
    ):
        pass


def test_differences_name_new_and_lost_fields():
    assert differences({"a": 1, "b": [1, 2]}, {"b": [1, 3], "c": None}) == [
        "a: was 1, now null",
        "b[1]: was 2, now 3",
    ]


CONTENT = dict[str, Any]
SIDES = {"a": {"run": "/one"}, "b": {"launcher": {"name": "simulated"}}}


def _list_readers():
    """Return the file, the story, a reader, and whether it takes a damaged file for a missing one.

    Fails if a story of the table cannot be read by its declaration.
    """
    found = []
    for one in (one for one in STORIES if one not in (RUN, SUITE)):
        if one.plan:
            found += [(one.plan, one, partial(one.find_plan, of=CONTENT), False)]
            found += [(one.plan, one, one.find_plan_content, False)]
        if one.result:
            found += [(one.result, one, partial(one.find, of=CONTENT), True)]
            found += [(one.result, one, partial(one.read, of=CONTENT), False)]
    found += [("compare.json", COMPARE, story_results.locate_runs, False)]
    found += [("attribution.json", ATTRIBUTE, story_results.check_attribution, True)]
    return found


READERS = _list_readers()


@pytest.mark.parametrize("more", [SIDES, {"all": "else"}], ids=["alike", "of other fields"])
@pytest.mark.parametrize(("name", "story", "read", "lenient"), READERS)
def test_a_newer_file_is_refused(name, story, read, lenient, more, tmp_path):
    text = json.dumps({"schema_version": story.version + 4, **more})
    (tmp_path / name).write_text(text)
    said = (
        f"{re.escape(str(tmp_path / name))} has format {story.version + 4}, but .* reads formats"
        f" up to {story.version}$"
    )
    with pytest.raises(RunFolderError, match=said) as caught:
        read(tmp_path)
    assert "or a newer one" in caught.value.hint
    assert (tmp_path / name).read_text() == text


def test_a_command_reads_what_it_writes_and_drops_it(tmp_path):
    COMPARE.write_plan(tmp_path, SIDES)
    stored = json.loads((tmp_path / "compare.json").read_text())
    assert stored == {"schema_version": COMPARE.version, **SIDES}
    assert COMPARE.find_plan_content(tmp_path) == SIDES
    assert story_results.locate_runs(tmp_path) == [("A", Path("/one")), ("B", tmp_path / "b")]
    TOOLS.write(tmp_path, {"cells": [1]})
    (tmp_path / "report.html").write_text("the page")
    assert TOOLS.find(tmp_path, CONTENT) == {"cells": [1]}
    TOOLS.drop(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["compare.json"]
    assert TOOLS.find(tmp_path, CONTENT) is TOOLS.read(tmp_path, CONTENT) is None


def test_a_file_without_a_version_is_of_the_first(tmp_path):
    (tmp_path / "compare.json").write_text(json.dumps(SIDES))
    assert COMPARE.find_plan_content(tmp_path) == SIDES
    assert len(story_results.locate_runs(tmp_path)) == 2


@pytest.mark.parametrize("content", ["{", '{"schema_version": "five"}', "[]"])
@pytest.mark.parametrize(("name", "story", "read", "lenient"), READERS)
def test_a_damaged_file_is_named(name, story, read, lenient, content, tmp_path):
    (tmp_path / name).write_text(content)
    if lenient:
        assert read(tmp_path) is None
        return
    with pytest.raises(RunFolderError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("plan", "place", "maker"),
    [
        ("compare.json", "a", "compare"),
        ("compare.json", "again_b", "compare"),
        ("compare.json", "c", ""),
        ("references.json", "run_2", "references take"),
        ("load_plan.json", "64_again", "load"),
        ("tools_plan.json", "stream_8", "tools"),
        (INVARIANTS.plan, "cold", "invariants"),
        ("bisect.json", "runs/00", "bisect"),
        ("bisect.json", "00", ""),
        ("suite.json", "runs/00", ""),
    ],
)
def test_a_run_is_known_as_a_part_of_what_asked_it(plan, place, maker, tmp_path):
    (tmp_path / "out" / place).mkdir(parents=True)
    (tmp_path / "out" / plan).write_text("{}")
    assert find_maker(tmp_path / "out" / place) == maker


CONTENT_OWNERSHIP = {"plan": {"a": 0.1, "b": [1, None]}, "schema_version": 1}


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_what_this_user_signed_for_a_folder_is_his_own_there(tmp_path, environ):
    saved = add_signature(CONTENT_OWNERSHIP, tmp_path, environ)
    key = tmp_path / "state/serve-eval/key"
    assert (stat.S_IMODE(key.stat().st_mode), len(key.read_bytes())) == (0o600, 32)
    assert is_own(saved, tmp_path, environ)
    assert is_own(dict(reversed(saved.items())), tmp_path, environ), (
        "the order of keys is not content"
    )
    (link := tmp_path / "link").symlink_to(tmp_path)
    assert is_own(saved, link, environ)
    assert not is_own(saved, tmp_path / "other", environ)
    assert not is_own({**saved, "schema_version": 2}, tmp_path, environ)
    assert not is_own({**saved, "more": 1}, tmp_path, environ)
    assert not is_own(CONTENT_OWNERSHIP, tmp_path, environ)
    assert not is_own({**saved, "signature": 5}, tmp_path, environ)
    assert not is_own({**saved, "signature": "\u00e9"}, tmp_path, environ)
    assert not is_own(saved, tmp_path, {"XDG_STATE_HOME": str(tmp_path / "another")})


@pytest.mark.parametrize("name", ["XDG_STATE_HOME", "HOME"])
def test_no_key_counts_that_lies_where_the_command_was_called(tmp_path, monkeypatch, name):
    """An unpacked folder could contain a key and plans signed with it."""
    monkeypatch.chdir(tmp_path)
    unpacked = tmp_path / ("state" if name == "XDG_STATE_HOME" else ".local/state")
    saved = add_signature(CONTENT_OWNERSHIP, tmp_path, {"XDG_STATE_HOME": str(unpacked)})
    monkeypatch.setenv("HOME", "." if name == "HOME" else str(tmp_path / "home"))
    relative = {"XDG_STATE_HOME": "state"} if name == "XDG_STATE_HOME" else {}
    assert not is_own(saved, tmp_path, relative)
    assert has_key(relative) is (name != "HOME")


def test_many_that_begin_at_once_have_one_key(tmp_path, environ):
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda _: add_signature(CONTENT_OWNERSHIP, tmp_path, environ)["signature"],
                range(32),
            )
        )
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "state/serve-eval").iterdir()] == ["key"]


@pytest.mark.parametrize("how", ["readable", "short", "link", "unwritable", "no home"])
def test_a_key_that_others_may_have_made_does_not_count(tmp_path, environ, how, monkeypatch):
    saved = add_signature(CONTENT_OWNERSHIP, tmp_path, environ)
    key = tmp_path / "state/serve-eval/key"
    if how == "readable":
        key.chmod(0o640)
    elif how == "short":
        key.write_bytes(b"k")
    elif how == "link":
        key.symlink_to(key.rename(tmp_path / "elsewhere"))
    elif how == "unwritable":
        environ["XDG_STATE_HOME"] = "/proc/nowhere"
    else:
        environ.clear()
        monkeypatch.setenv("HOME", "/proc/nowhere")
    assert not is_own(saved, tmp_path, environ)
    assert not has_key(environ)
    assert "signature" not in add_signature(CONTENT_OWNERSHIP, tmp_path, environ)
